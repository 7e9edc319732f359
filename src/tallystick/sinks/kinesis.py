"""The Kinesis sink: records that say which row of which epoch they are, sent after the decision.

Kinesis has no transactions and no ids: what is sent again is there twice. Each record carries a mark by which a reader
can tell (`tallystick.kinesis.marks`); the Kinesis source of this package drops what it has seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.config import duration_s
from tallystick.errors import ConfigError, RowRefusedError, SinkError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.kinesis.marks import KEY_LETTERS_MAX, Mark, hash_key
from tallystick.records import Json, Mode
from tallystick.sinks.base import JobContext, PlainSink, SliceContext
from tallystick.sinks.extras import needed
from tallystick.sinks.letters import documents
from tallystick.sinks.refusals import Refusal, screened, where

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

RECORDS_MAX = 500
REQUEST_BYTES_MAX = 5 << 20
RECORD_BYTES_MAX = 1 << 20
KEY_BYTES_MAX = 1024
TRIES = 8
PAUSE_S = 0.1
_PASSING = ("Throttl", "LimitExceeded", "ProvisionedThroughput", "InternalFailure", "ServiceUnavailable", "InUse")


@dataclass(frozen=True, repr=False)
class Kinesis(PlainSink):
    """Put rows into a stream, each with a mark that says which row of which epoch it is.

    Rows have a column ``value`` (text or binary), the data, and if wanted ``key`` (text): records with the same key go
    to the same shard. Without one, records are spread over all shards.

    stream            the name of the stream; it must be there
    region            such as "eu-central-1"; None: as AWS's own tools find it
    endpoint          a URL, for servers that are not AWS
    access_key        with ``secret_key``, instead of what AWS's own tools find (environment, profile, role)
    secret_key        never shown
    ca_file           whom to trust, as PEM, if not whom this machine trusts
    request_timeout   how long one request may take, such as "10s"
    """

    facts = SinkFacts(
        "kinesis",
        Kind.PLAIN,
        Mode.AT_LEAST_ONCE,
        "records carry job, epoch, slice and ordinal; sent after the decision, again after a crash",
        "a reader that drops repeats by the mark makes it exactly-once; a checkpoint that all workers share",
    )
    on_executors = True

    stream: str
    region: str | None = None
    endpoint: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    ca_file: str | None = None
    request_timeout: str = "10s"
    timeout_s: float = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.stream, str) or not self.stream:
            raise ConfigError(f"kinesis: stream is {self.stream!r}, needed the name of a stream")
        if (self.access_key is None) != (self.secret_key is None):
            raise ConfigError("kinesis: access_key and secret_key go together: found only one of them")
        if self.endpoint is not None and "@" in self.endpoint:
            raise ConfigError("kinesis: endpoint has a user in it: give access_key= and secret_key= apart")
        object.__setattr__(self, "timeout_s", duration_s(self.request_timeout))

    @property
    def target(self) -> str:
        return f"kinesis:{self.endpoint or self.region or 'aws'}/{self.stream}"

    def __repr__(self) -> str:
        return f"Kinesis({self.stream!r}, region={self.region!r}, endpoint={self.endpoint!r})"

    def columns(self, schema: StructType, column: Callable[[str], Column]) -> Sequence[Column]:
        from pyspark.sql import functions as f

        names = schema.fieldNames()
        kinds = {each.name: each.dataType.simpleString() for each in schema.fields}
        if "value" not in names or kinds["value"] not in ("string", "binary"):
            raise ConfigError(f"kinesis: needed a column value of text or binary, found {schema.simpleString()}")
        extra = [name for name in names if name not in ("key", "value")]
        if extra or kinds.get("key", "string") != "string":
            raise ConfigError(
                f"kinesis: takes the columns value and, as text, key; found {schema.simpleString()}: select them, with "
                "to_json(struct(*)) AS value for all of a row"
            )
        key = column("key") if "key" in names else f.lit(None).cast("string")
        return [key.alias("key"), column("value").cast("binary").alias("value")]

    def check(self, job: JobContext) -> None:
        try:
            described = _asked(self, "describe_stream_summary", StreamName=self.stream)
        except OSError as error:
            raise SinkError(f"{error}. start it, or correct endpoint= or region=") from error
        status = described["StreamDescriptionSummary"]["StreamStatus"]
        if status not in ("ACTIVE", "UPDATING"):
            raise SinkError(f"kinesis: the stream {self.stream} is {status}, needed ACTIVE: wait, or make it anew")

    def letters(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"key": rows.column("id"), "value": documents(rows).cast(pa.binary())})

    def screen(self, context: SliceContext, rows: pa.RecordBatch) -> Sequence[Refusal]:
        keys = rows.column("key")
        return screened(context, _refused(rows), lambda found: self._error(keys[found.place].as_py(), found.why))

    def _error(self, key: str | None, why: str) -> RowRefusedError:
        return RowRefusedError(f"{self.target} cannot hold the row with the key {str(key)[:80]!r}: {why}")

    def apply(self, context: SliceContext, batches: Iterable[pa.RecordBatch]) -> None:
        for request in _requests(context, batches):
            self._put(request)

    def _put(self, records: list[Json]) -> None:
        """What the service does not take now is sent again; the rest of the request stands."""
        for attempt in range(TRIES):
            answer = _asked(self, "put_records", StreamName=self.stream, Records=records)
            if not answer["FailedRecordCount"]:
                return
            said = next(each["ErrorMessage"] for each in answer["Records"] if "ErrorCode" in each)
            records = [record for record, each in zip(records, answer["Records"], strict=True) if "ErrorCode" in each]
            time.sleep(PAUSE_S * 2**attempt)
        raise ConnectionError(f"kinesis: {len(records)} records are not taken after {TRIES} tries: {said}")


def _refused(rows: pa.RecordBatch) -> Iterator[Refusal]:
    keys, values = rows.column("key"), rows.column("value")
    yield from where(values.is_null(), "its value is null")
    yield from where(pc.greater(pc.utf8_length(keys), KEY_LETTERS_MAX), f"its key has over {KEY_LETTERS_MAX} letters")
    most = RECORD_BYTES_MAX - KEY_BYTES_MAX
    yield from where(pc.greater(pc.binary_length(values), most), f"its value has over {most} bytes")


def _requests(context: SliceContext, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Json]]:
    """As many records as one request takes, in the order of the slice."""
    request: list[Json] = []
    size = ordinal = 0
    attempt = context.attempt
    for batch in batches:
        for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
            mark = Mark(context.job_id, attempt.epoch, attempt.generation, context.slice, ordinal)
            named = mark.partition_key(key or "")
            length = len(value) + len(named.encode())
            if len(request) == RECORDS_MAX or (request and size + length > REQUEST_BYTES_MAX):
                yield request
                request, size = [], 0
            chosen = hash_key(key if key else str(mark))
            request.append({"Data": value, "PartitionKey": named, "ExplicitHashKey": chosen})
            size, ordinal = size + length, ordinal + 1
    if request:
        yield request


_clients: dict[Kinesis, Any] = {}
_lock = threading.Lock()


def _client_for(sink: Kinesis) -> Any:
    """This process's client: made once, because that takes longer than many a slice."""
    with _lock:
        if sink not in _clients:
            settings = needed("botocore.config", "boto3", "kinesis").Config(
                connect_timeout=sink.timeout_s,
                read_timeout=sink.timeout_s,
                retries={"total_max_attempts": 2},
            )
            _clients[sink] = needed("boto3", "boto3", "kinesis").client(
                "kinesis",
                region_name=sink.region,
                endpoint_url=sink.endpoint,
                aws_access_key_id=sink.access_key,
                aws_secret_access_key=sink.secret_key,
                verify=sink.ca_file,
                config=settings,
            )
        return _clients[sink]


def _asked(sink: Kinesis, operation: str, **arguments: Any) -> Any:
    """`OSError` if the service cannot answer now, `SinkError` if it says no."""
    errors = needed("botocore.exceptions", "boto3", "kinesis")
    try:
        return getattr(_client_for(sink), operation)(**arguments)
    except (errors.NoCredentialsError, errors.NoRegionError, errors.PartialCredentialsError) as error:
        raise SinkError(f"kinesis: {error}: set region=, access_key= and secret_key=, or AWS's own variables") from None
    except errors.ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        said = error.response.get("Error", {}).get("Message") or code
        if any(word in code for word in _PASSING) or error.response["ResponseMetadata"]["HTTPStatusCode"] >= 500:
            raise ConnectionError(f"kinesis: {code}: {said}") from None
        hint = f". make it with: aws kinesis create-stream --stream-name {sink.stream}" if "NotFound" in code else ""
        raise SinkError(f"kinesis: {sink.stream}: {code}: {said}{hint}") from None
    except errors.BotoCoreError as error:
        raise ConnectionError(f"kinesis: {sink.endpoint or sink.region or 'aws'} cannot be reached: {error}") from None
