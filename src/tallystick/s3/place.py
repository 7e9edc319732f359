"""Where an ``s3:`` or ``s3a:`` URI points: a bucket and a prefix, at the endpoint that the environment names."""

from __future__ import annotations

import os
import re

from tallystick.errors import ConfigError
from tallystick.s3.client import Bucket

_URI = re.compile(r"s3a?://(?P<bucket>[^/]*)(?:/(?P<prefix>.*))?", re.IGNORECASE | re.DOTALL)


def is_s3(location: str) -> bool:
    return re.match(r"s3a?:", location, re.IGNORECASE) is not None


def place(location: str) -> tuple[Bucket, str]:
    """The bucket, and the prefix without slashes around it.

    S3 is asked at ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL``, as other tools do, else at Amazon.
    """
    found = _URI.fullmatch(location.rstrip("/"))
    bucket, prefix = (found["bucket"], found["prefix"] or "") if found else ("", "")
    if not bucket or any(step in ("", ".", "..") for step in prefix.split("/")):
        raise ConfigError(f"{location} names no folder: needed s3://BUCKET/FOLDER")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return Bucket(bucket, endpoint), prefix


def spelled(location: str) -> str:
    """As Spark's JVM knows it: ``s3a:`` is the scheme of Hadoop's client. What is not in S3 stays as it is."""
    if not is_s3(location):
        return location
    bucket, prefix = place(location)
    return f"s3a://{bucket.name}/{prefix}"
