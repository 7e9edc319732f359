"""The OpenSearch sink against a real node: the shipped contract, late writes, and what is refused when."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from test_sinks import StagedContract

from real_servers import Elsewhere
from search_indices import ask, documents, new_index
from tallystick.errors import CommitRefusedError, ConfigError, MissingExtraError, RowRefusedError, SinkError
from tallystick.records import Json
from tallystick.servers import OpenSearch as Node
from tallystick.servers import TcpProxy
from tallystick.sinks import Elasticsearch, OpenSearch, Tls
from tallystick.sinks.base import JobContext, SliceContext
from tallystick.sinks.extras import needed
from tallystick.sinks.letters import SCHEMA as LETTER_SCHEMA
from tallystick.sinks.opensearch import bulk
from tallystick.sinks.opensearch.client import Connection
from tallystick.sinks.opensearch.mapping import mapping_for, misfits
from tallystick.sinks.staged import lower
from tallystick.sinks.stamps import SLICES_MAX, WINDOW_ROWS
from tallystick.testing.sinks import context

T0 = 1_800_000_000_000_000
KEYWORD = {"name": {"type": "keyword"}}


def rows(*pairs: tuple[str | None, Json]) -> pa.RecordBatch:
    """As `columns` shapes them."""
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array([id_ for id_, _ in pairs], pa.string()),
            "document": pa.array([json.dumps(document) for _, document in pairs], pa.string()),
            "not_finite": pa.array([False] * len(pairs), pa.bool_()),
        }
    )


def at(stamp: int, slice_: int = 0, epoch: int = 0, generation: int = 1) -> SliceContext:
    return replace(context(epoch=epoch, slice_=slice_, generation=generation), stamp_us=stamp)


class SearchContract(StagedContract):
    @pytest.fixture(autouse=True)
    def _node(self, opensearch: Node | Elsewhere) -> Iterator[None]:
        self.address = opensearch.address
        with TcpProxy(int(self.address.rpartition(":")[2])) as self.proxy:
            yield

    id: str | None = None

    def make_sink(self, tmp_path: Path) -> OpenSearch:
        return OpenSearch(f"http://{self.proxy.address}", new_index(self.address), self.id, request_timeout="2s")

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        return rows(*((str(n) if self.id else None, {"name": f"row {n}"}) for n in range(start, start + count)))

    def refused_rows(self) -> pa.RecordBatch:
        made = rows((None, {"name": "a"}), ("", {"name": "b"}))
        return made if self.id else made.set_column(2, "not_finite", pa.array([True, True]))

    def as_read(self, batch: pa.RecordBatch) -> Sequence[Json]:
        return [json.loads(document) for document in batch.column("document").to_pylist()]

    def read_rows(self, sink: OpenSearch) -> Sequence[Json]:
        return [document for _, document in documents(self.address, sink.index)]

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self.proxy.cut()
        yield
        self.proxy.heal()

    def break_connection(self, sink: Any) -> contextlib.AbstractContextManager[None]:
        return self.cut()


class TestOpenSearchById(SearchContract):
    id = "name"


class TestOpenSearchAppended(SearchContract):
    """A reader would see a document that was written under another id the second time."""


@pytest.fixture
def sink(opensearch: Node | Elsewhere) -> OpenSearch:
    made = OpenSearch(opensearch.address, new_index(opensearch.address, KEYWORD), "id")
    made.check(JobContext())
    return made


def found(sink: OpenSearch) -> list[tuple[str, Any]]:
    return documents(sink.connection.urls[0], sink.index)


# -- stamps: who wins --------------------------------------------------------------------------------------------------


def test_a_late_write_of_an_earlier_epoch_changes_nothing(sink: OpenSearch) -> None:
    old = rows(("1", {"name": "old"}), ("2", {"name": "old"}))
    sink.apply(at(T0, epoch=5), [old])
    sink.apply(at(T0 + 10**6, epoch=6, generation=2), [rows(("1", {"name": "new"}))])
    sink.apply(at(T0, epoch=5), [old])
    assert found(sink) == [("1", {"name": "new"}), ("2", {"name": "old"})]


def test_of_rows_with_one_id_the_last_wins_and_of_slices_the_higher(sink: OpenSearch) -> None:
    sink.apply(at(T0, slice_=1), [rows(("1", {"name": "b"}), ("1", {"name": "a"}))])
    sink.apply(at(T0, slice_=0), [rows(("1", {"name": "c"}))])
    assert found(sink) == [("1", {"name": "a"})]
    many = rows(*[("2", {"name": "early"})] * WINDOW_ROWS, ("2", {"name": "late"}))
    sink.apply(at(T0, slice_=0), [many])
    address = sink.connection.urls[0]
    assert ask(address, "GET", f"/{sink.index}/_doc/2")["_version"] == T0 + SLICES_MAX
    assert found(sink)[1] == ("2", {"name": "late"})


def test_what_another_program_wrote_in_between_is_replaced(sink: OpenSearch) -> None:
    address = sink.connection.urls[0]
    sink.apply(at(T0), [rows(("1", {"name": "a"}))])
    ask(address, "PUT", f"/{sink.index}/_doc/1", {"name": "by hand"})
    sink.apply(at(T0), [rows(("1", {"name": "a"}))])
    assert found(sink) == [("1", {"name": "by hand"})], "it is newer than what is applied late"
    sink.apply(at(T0 + 1000), [rows(("1", {"name": "b"}))])
    assert found(sink) == [("1", {"name": "b"})]


# -- rows that the server refuses --------------------------------------------------------------------------------------


def test_a_refused_document_is_told_with_its_id_and_the_words_of_the_server(
    opensearch: Node | Elsewhere, tmp_path: Path
) -> None:
    made = OpenSearch(opensearch.address, new_index(opensearch.address, {"day": {"type": "date"}}), "id")
    staged = lower(made, tmp_path / "staging")
    staged.check(JobContext())
    transaction = staged.begin_transaction(at(T0))
    staged.write(transaction, rows(("good", {"day": "2026-01-01"}), ("bad", {"day": "soon"})))
    committable = staged.pre_commit(transaction)
    with pytest.raises(
        CommitRefusedError, match=r"the document 'bad': mapper_parsing_exception: .*nothing was dropped"
    ):
        staged.commit_all([committable], recovering=False)
    assert staged.open_transactions("contract-job"), "it is still there, and is applied when the cause is removed"


def test_a_dead_letter_index_takes_what_is_refused_once(opensearch: Node | Elsewhere) -> None:
    address = opensearch.address
    dead = new_index(address)
    made = OpenSearch(address, new_index(address, {"day": {"type": "date"}}), "id", dead_letter=dead)
    made.check(JobContext())
    batch = rows(("good", {"day": "2026-01-01"}), ("bad", {"day": "soon"}))
    for _ in range(2):
        made.apply(at(T0, slice_=3, epoch=7), [batch])
    assert [id_ for id_, _ in documents(address, made.index)] == ["good"]
    ((id_, letter),) = documents(address, dead)
    assert set(letter) == set(LETTER_SCHEMA.names), "the same fields as every dead letter"
    assert (letter["epoch"], letter["slice"], letter["id"]) == (7, 3, id_)
    assert json.loads(letter["row"]) == {"id": "bad", "document": '{"day": "soon"}'}
    assert "mapper_parsing_exception" in letter["reason"]


@pytest.mark.parametrize(
    ("shut", "open_again"),
    [
        (("PUT", "_settings", {"index.blocks.write": True}), ("PUT", "_settings", {"index.blocks.write": False})),
        (("POST", "_close", None), ("POST", "_open", None)),
    ],
    ids=["read-only", "closed"],
)
def test_an_index_that_takes_nothing_is_waited_for_and_its_rows_are_no_dead_letters(
    opensearch: Node | Elsewhere, shut: Any, open_again: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a disk is full: the server blocks the index, and good rows must not be taken for bad ones."""
    monkeypatch.setattr(bulk, "TRIES", 2)
    address = opensearch.address
    dead = new_index(address)
    made = OpenSearch(address, new_index(address, KEYWORD), "id", dead_letter=dead)
    made.check(JobContext())
    ask(address, shut[0], f"/{made.index}/{shut[1]}", shut[2])
    with pytest.raises(OSError, match=r"1 documents are not taken after 2 tries|cannot be reached|answers"):
        made.apply(at(T0), [rows(("1", {"name": "a"}))])
    ask(address, open_again[0], f"/{made.index}/{open_again[1]}", open_again[2])
    ask(address, "GET", f"/_cluster/health/{made.index}?wait_for_status=yellow&timeout=30s")
    made.apply(at(T0), [rows(("1", {"name": "a"}))])
    assert found(made) == [("1", {"name": "a"})]
    assert documents(address, dead) == []


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (rows(("1", {}), (None, {"a": 1})), r"the row \{\"a\": 1\}: its id is null"),
        (rows(("", {})), "its id is empty"),
        (rows(("k" * 513, {})), "over 512 bytes"),
        (rows(("1", {})).set_column(2, "not_finite", pa.array([True])), "with the id '1': .*NaN, or infinite"),
    ],
)
def test_a_row_that_the_server_would_refuse_is_told_before_the_decision(
    sink: OpenSearch, batch: pa.RecordBatch, why: str
) -> None:
    with pytest.raises(RowRefusedError, match=why):
        sink.screen(at(T0), batch)


# -- what is refused before the start ----------------------------------------------------------------------------------

SCHEMA = t.StructType(
    [
        t.StructField("id", t.LongType()),
        t.StructField("name", t.StringType()),
        t.StructField("at", t.TimestampType()),
        t.StructField("tags", t.ArrayType(t.StringType())),
        t.StructField("place", t.StructType([t.StructField("x", t.DoubleType())])),
    ]
)


def test_an_index_is_made_for_the_rows(opensearch: Node | Elsewhere) -> None:
    made = OpenSearch(opensearch.address, new_index(opensearch.address), "id")
    object.__setattr__(made, "schema", SCHEMA)
    made.check(JobContext())
    made.check(JobContext())
    mapping = ask(opensearch.address, "GET", f"/{made.index}")[made.index]["mappings"]
    assert mapping["properties"]["at"]["type"] == "date"
    assert mapping["properties"]["place"]["properties"]["x"]["type"] == "double"
    assert list(misfits(SCHEMA, mapping)) == []
    assert list(misfits(SCHEMA, mapping_for(SCHEMA))) == []
    with pytest.raises(SinkError, match=r"there is no index .*create=True"):
        OpenSearch(opensearch.address, new_index(opensearch.address), create=False).check(JobContext())


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"name": {"type": "date"}}, r"the field 'name' is date, and the rows have string.*dead_letter="),
        ({"id": {"type": "integer"}}, r"the field 'id' is integer, and the rows have bigint"),
        ({"place": {"type": "keyword"}}, r"the field 'place' is keyword, and the rows have a struct"),
        ({"place": {"properties": {"x": {"type": "long"}}}}, r"the field 'place.x' is long, and the rows have double"),
    ],
)
def test_a_mapping_that_may_refuse_rows_is_refused_at_the_start(
    opensearch: Node | Elsewhere, properties: Json, why: str
) -> None:
    made = OpenSearch(opensearch.address, new_index(opensearch.address, properties), "id")
    object.__setattr__(made, "schema", SCHEMA)
    with pytest.raises(SinkError, match=why):
        made.check(JobContext())
    allowed = OpenSearch(opensearch.address, made.index, "id", dead_letter=new_index(opensearch.address))
    object.__setattr__(allowed, "schema", SCHEMA)
    allowed.check(JobContext())


def test_an_index_that_cannot_be_written_to_is_told(opensearch: Node | Elsewhere) -> None:
    address = opensearch.address
    blocked = new_index(address, settings={"index.blocks.write": True})
    with pytest.raises(SinkError, match=r"index.blocks.write is set"):
        OpenSearch(address, blocked).check(JobContext())
    one, two, alias = new_index(address, {}), new_index(address, {}), new_index(address)
    actions = [{"add": {"index": index, "alias": alias}} for index in (one, two)]
    ask(address, "POST", "/_aliases", {"actions": actions})
    with pytest.raises(SinkError, match=r"is an alias of .*is_write_index"):
        OpenSearch(address, alias).check(JobContext())
    with pytest.raises(SinkError, match=r"127\.0\.0\.1:1 cannot be reached.*tallystick servers status"):
        OpenSearch("http://127.0.0.1:1", "t").check(JobContext())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"index": "Upper"}, "lower case"),
        ({"index": "a/b"}, "lower case"),
        ({"dead_letter": "t"}, "its own dead-letter"),
        ({"bulk_bytes": 0}, "needed 1 to"),
        ({"bulk_bytes": 1 << 30}, "needed 1 to"),
        ({"username": "me"}, "go together"),
        ({"hosts": "http://me:s3cret@a"}, "give username="),
        ({"hosts": "ftp://a"}, "is not a URL"),
        ({"hosts": []}, "at least one"),
        ({"id": []}, "id needs a column"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_at_once(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        OpenSearch(**{"hosts": "localhost", "index": "t", **settings})
    assert "s3cret" not in str(refused.value)


# -- secrets, TLS, the other product -----------------------------------------------------------------------------------


def test_passwords_are_never_shown() -> None:
    sink = OpenSearch("https://a", "t", username="me", password="p4ss", tls=Tls(cert_file="c", key_password="k3y"))
    for shown in (repr(sink), str(sink), sink.target, repr(sink.connection)):
        assert "p4ss" not in shown
        assert "k3y" not in shown


def test_elasticsearch_says_what_was_tested() -> None:
    sink = Elasticsearch("localhost", "t", "id")
    assert sink.target == "elasticsearch:http://localhost:9200/t"
    assert "tested with OpenSearch only" in sink.facts.conditions


def test_tls_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"ca.pem cannot be used"):
        Connection.of("https://127.0.0.1:1", None, None, Tls(ca_file=str(tmp_path / "ca.pem"))).ask("GET", "/")


def test_a_missing_client_is_told_with_the_command() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'tallystick\[opensearch\]'"):
        needed("there_is_no_such_module", "opensearch-py", "opensearch")
