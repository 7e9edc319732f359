"""Objects of S3 for tests: buckets made, objects read and uploads listed with a client of their own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
from botocore.config import Config

from tallystick.records import Json
from tallystick.servers import S3Server
from tallystick.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY

BUCKET = "tallystick-tests"


def client(server: S3Server) -> Any:
    return boto3.session.Session(ACCESS_KEY, SECRET_KEY, region_name=REGION).client(
        "s3", endpoint_url=server.address, config=Config(s3={"addressing_style": "path"})
    )


def make_bucket(server: S3Server) -> None:
    client(server).create_bucket(Bucket=BUCKET)


def new_path() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/out"


def objects_below(server: S3Server, path: str) -> Iterator[tuple[str, bytes]]:
    """Every object below a path, notes and all: its key and its bytes."""
    reader, prefix = client(server), path.partition(BUCKET)[2].strip("/")
    for page in reader.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/"):
        for entry in page.get("Contents", ()):
            yield entry["Key"], reader.get_object(Bucket=BUCKET, Key=entry["Key"])["Body"].read()


def rows_below(server: S3Server, path: str, extension: str = ".parquet") -> list[Json]:
    found: list[Json] = []
    for key, data in objects_below(server, path):
        if key.endswith(extension) and extension == ".parquet":
            found += pq.read_table(pa.BufferReader(data), partitioning=None).to_pylist()
        elif key.endswith(extension):
            found += data.decode().splitlines()
    return found


def uploads_below(server: S3Server, path: str) -> list[str]:
    """The keys of uploads that are neither completed nor aborted."""
    prefix = path.partition(BUCKET)[2].strip("/")
    pages = client(server).get_paginator("list_multipart_uploads").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
    return [entry["Key"] for page in pages for entry in page.get("Uploads", ())]
