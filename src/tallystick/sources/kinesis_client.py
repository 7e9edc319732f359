"""Calls to Kinesis: boto3 where it is needed, its errors in our words, and patience with throttling."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeAlias

from tallystick.errors import MissingExtraError, SourceError
from tallystick.sources.kinesis_shards import BEGINNING, CLOSED, Shard, sequence_of

THROTTLED = (
    "ProvisionedThroughputExceededException",
    "LimitExceededException",
    "ThrottlingException",
    "KMSThrottlingException",
    "InternalFailure",
    "ServiceUnavailable",
)
DENIED = (
    "AccessDeniedException",
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "ExpiredTokenException",
    "IncompleteSignature",
    "MissingAuthenticationTokenException",
    "InvalidClientTokenId",
)
PATIENCE_S = 60.0
PAUSE_FIRST_S = 0.2
PAUSE_LONGEST_S = 2.0
RECORDS_PER_CALL = 10_000

Page: TypeAlias = "tuple[list[Any], int | None]"
"""Records, and how many milliseconds they are behind the newest; None after the end of a closed shard."""


@dataclass
class KinesisClient:
    """One stream. Pickled without its connection: every process makes its own."""

    stream: str
    region: str | None
    endpoint: str | None
    throttled: int = 0
    expired: int = 0
    _made: Any = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_made": None}

    def shards(self) -> list[Shard]:
        """All that the stream still has, closed ones too."""
        found: list[Shard] = []
        request: dict[str, Any] = {"StreamName": self.stream}
        while True:
            answer = self._call("list_shards", **request)
            found += [_shard(entry) for entry in answer["Shards"]]
            if not answer.get("NextToken"):
                return found
            request = {"NextToken": answer["NextToken"]}

    def retention_s(self) -> float:
        summary = self._call("describe_stream_summary", StreamName=self.stream)["StreamDescriptionSummary"]
        return float(summary["RetentionPeriodHours"]) * 3600

    def still_there(self, shard: str, sequence: str) -> bool:
        """Whether this record can still be read: then everything after it can."""
        for records, behind_ms in self._pages(shard, "AT_SEQUENCE_NUMBER", {"StartingSequenceNumber": sequence}, 1):
            if records:
                return bool(records[0]["SequenceNumber"] == sequence)
            if behind_ms == 0:
                return False
        return False

    def read(self, shard: str, position: str, limit: int) -> Iterator[Page]:
        """Pages of records after a position, each with how far behind it is; None after the end of a closed shard."""
        sequence = sequence_of(position)
        bare = position.removesuffix(CLOSED)
        if sequence is not None:
            return self._pages(shard, "AFTER_SEQUENCE_NUMBER", {"StartingSequenceNumber": sequence}, limit)
        if bare == BEGINNING:
            return self._pages(shard, "TRIM_HORIZON", {}, limit)
        return self._pages(shard, "AT_TIMESTAMP", {"Timestamp": float(bare.removeprefix("@"))}, limit)

    def read_from(self, shard: str, sequence: str) -> Iterator[Page]:
        """Pages of records from this one on, itself among them."""
        return self._pages(shard, "AT_SEQUENCE_NUMBER", {"StartingSequenceNumber": sequence}, RECORDS_PER_CALL)

    def _pages(self, shard: str, kind: str, start: dict[str, Any], limit: int) -> Iterator[Page]:
        iterator = self._iterator(shard, kind, start)
        while iterator is not None:
            try:
                answer = self._call("get_records", ShardIterator=iterator, Limit=min(limit, RECORDS_PER_CALL))
            except _ExpiredIteratorError:
                self.expired += 1
                iterator = self._iterator(shard, kind, start)
                continue
            records = answer["Records"]
            if records:
                kind, start = "AFTER_SEQUENCE_NUMBER", {"StartingSequenceNumber": records[-1]["SequenceNumber"]}
            iterator = answer.get("NextShardIterator")
            yield records, None if iterator is None else int(answer.get("MillisBehindLatest") or 0)

    def _iterator(self, shard: str, kind: str, start: dict[str, Any]) -> str:
        answer = self._call(
            "get_shard_iterator", StreamName=self.stream, ShardId=shard, ShardIteratorType=kind, **start
        )
        return str(answer["ShardIterator"])

    def _call(self, name: str, **request: Any) -> Any:
        """One call, again while Kinesis is busy."""
        errors = _library("botocore.exceptions")
        deadline, pause_s = time.monotonic() + PATIENCE_S, PAUSE_FIRST_S
        while True:
            try:
                return self._method(name)(**request)
            except errors.ClientError as failure:
                code = str(failure.response.get("Error", {}).get("Code", ""))
                if code == "ExpiredIteratorException":
                    raise _ExpiredIteratorError from failure
                if code not in THROTTLED or time.monotonic() > deadline:
                    raise self._in_words(code, failure) from failure
                self.throttled += 1
            except errors.NoCredentialsError as failure:
                raise self._in_words("MissingAuthenticationTokenException", failure) from failure
            except errors.BotoCoreError as failure:
                if time.monotonic() > deadline:
                    raise SourceError(
                        f"Kinesis has not answered for {PATIENCE_S:g} s: {failure}. check region, endpoint and network"
                    ) from failure
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_LONGEST_S)

    def _method(self, name: str) -> Callable[..., Any]:
        if self._made is None:
            library, config = _library("boto3"), _library("botocore.config")
            try:
                self._made = library.client(
                    "kinesis",
                    region_name=self.region,
                    endpoint_url=self.endpoint,
                    config=config.Config(retries={"max_attempts": 1}, connect_timeout=5, read_timeout=30),
                )
            except _library("botocore.exceptions").BotoCoreError as failure:
                raise SourceError(f"Kinesis cannot be called: {failure}. declare region=") from failure
        found: Callable[..., Any] = getattr(self._made, name)
        return found

    def _in_words(self, code: str, failure: BaseException) -> SourceError:
        if code == "ResourceNotFoundException":
            return SourceError(f"Kinesis has no stream {self.stream!r}, or a shard of it is gone: {failure}")
        if code in DENIED:
            return SourceError(
                f"Kinesis refuses these credentials for the stream {self.stream!r}: {failure}. boto3 takes them from "
                "the environment, from its files or from the machine's role"
            )
        if code == "InvalidArgumentException":
            return SourceError(
                f"Kinesis does not know a position of the stream {self.stream!r}: {failure}. its retention has passed, "
                "or the stream was deleted and made anew. to go on without what is gone start with a new checkpoint"
            )
        return SourceError(f"Kinesis, stream {self.stream!r}: {failure}")


class _ExpiredIteratorError(Exception):
    """Five minutes old: a new one is made from the position."""


def _shard(entry: Any) -> Shard:
    parents = (entry.get("ParentShardId"), entry.get("AdjacentParentShardId"))
    hashes = entry["HashKeyRange"]
    return Shard(
        str(entry["ShardId"]),
        tuple(parent for parent in parents if parent),
        range(int(hashes["StartingHashKey"]), int(hashes["EndingHashKey"]) + 1),
        "EndingSequenceNumber" in entry["SequenceNumberRange"],
    )


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as cause:
        raise MissingExtraError(
            f"Kinesis needs the package boto3, which cannot be imported here ({cause}). on this machine, and on every "
            "machine that runs executors: pip install 'tallystick[kinesis]'"
        ) from cause
