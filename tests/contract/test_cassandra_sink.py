"""The Cassandra sink against a real node: the shipped contract, late writes, and what is refused when."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from test_sinks import StagedContract

from cassandra_tables import KEYSPACE, ask, new_table
from real_servers import Elsewhere, started
from tallystick.errors import ConfigError, MissingExtraError, RowRefusedError, SinkError
from tallystick.records import Json, Outcome
from tallystick.servers import TcpProxy
from tallystick.servers.cassandra import PASSWORD, USER
from tallystick.servers.cassandra import Cassandra as Node
from tallystick.sinks import Cassandra, Tls
from tallystick.sinks.base import JobContext, SliceContext
from tallystick.sinks.cassandra import client
from tallystick.sinks.stamps import SLICES_MAX, WINDOW_ROWS, stamp_us, windows
from tallystick.testing.sinks import context

ROWS = "id bigint PRIMARY KEY, name text"
T0 = 1_800_000_000_000_000


def rows(*pairs: tuple[int, str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"id": pa.array([id_ for id_, _ in pairs], pa.int64()), "name": pa.array([n for _, n in pairs], pa.string())}
    )


def at(stamp: int, slice_: int = 0, epoch: int = 0, generation: int = 1) -> SliceContext:
    return replace(context(epoch=epoch, slice_=slice_, generation=generation), stamp_us=stamp)


@pytest.fixture(autouse=True, scope="module")
def _connections() -> Iterator[None]:
    yield
    client.close()


@pytest.fixture
def table(cassandra: Node | Elsewhere) -> str:
    return new_table(cassandra.address, ROWS)


@pytest.fixture
def sink(cassandra: Node | Elsewhere, table: str) -> Cassandra:
    made = Cassandra(cassandra.address, table)
    made.check(JobContext())
    return made


class TestCassandra(StagedContract):
    @pytest.fixture(autouse=True)
    def _node(self, cassandra: Node | Elsewhere) -> Iterator[None]:
        self.address = cassandra.address
        with TcpProxy(int(self.address.split(":")[1])) as self.proxy:
            yield

    def make_sink(self, tmp_path: Path) -> Cassandra:
        return Cassandra(self.proxy.address, new_table(self.address, ROWS), request_timeout="1s")

    def refused_rows(self) -> pa.RecordBatch:
        return rows((90, "a"), (91, None)).set_column(0, "id", pa.nulls(2, pa.int64()))

    def read_rows(self, sink: Cassandra) -> Sequence[Json]:
        return [{"id": id_, "name": name} for id_, name in ask(self.address, f"SELECT id, name FROM {sink.table}")]

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self.proxy.cut()
        yield
        self.proxy.heal()

    def break_connection(self, sink: Any) -> contextlib.AbstractContextManager[None]:
        return self.cut()


# -- stamps: who wins --------------------------------------------------------------------------------------------------


def test_a_late_write_of_an_earlier_epoch_changes_nothing(
    sink: Cassandra, cassandra: Node | Elsewhere, table: str
) -> None:
    sink.apply(at(T0, epoch=5), [rows((1, "old"), (2, "old"))])
    sink.apply(at(T0 + 10**6, epoch=6, generation=2), [rows((1, "new"))])
    sink.apply(at(T0, epoch=5), [rows((1, "old"), (2, "old"))])
    assert sorted(ask(cassandra.address, f"SELECT id, name FROM {table}")) == [(1, "new"), (2, "old")]


def test_a_late_null_does_not_delete_what_a_later_epoch_wrote(
    sink: Cassandra, cassandra: Node | Elsewhere, table: str
) -> None:
    sink.apply(at(T0 + 10**6), [rows((1, "new"))])
    sink.apply(at(T0), [rows((1, None))])
    assert ask(cassandra.address, f"SELECT name FROM {table}") == [("new",)]


def test_a_null_deletes_unless_it_is_to_be_kept(cassandra: Node | Elsewhere, table: str) -> None:
    keeping = Cassandra(cassandra.address, table, nulls="keep")
    for nulls, left in ((keeping, "a"), (Cassandra(cassandra.address, table), None)):
        nulls.check(JobContext())
        nulls.apply(at(T0), [rows((1, "a"))])
        nulls.apply(at(T0 + 1), [rows((1, None))])
        assert ask(cassandra.address, f"SELECT name FROM {table}") == [(left,)]
    keeping.apply(at(T0 + 2), [rows((1, "b"), (1, None))])
    assert ask(cassandra.address, f"SELECT name FROM {table}") == [("b",)]


def test_of_rows_with_one_key_the_last_wins_and_of_slices_the_higher(
    sink: Cassandra, cassandra: Node | Elsewhere, table: str
) -> None:
    """The values are chosen so that Cassandra's own rule for equal timestamps, the greater value, would decide else."""
    sink.apply(at(T0, slice_=1), [rows((1, "z"), (1, "a"))])
    sink.apply(at(T0, slice_=0), [rows((1, "y"))])
    assert ask(cassandra.address, f"SELECT name, writetime(name) FROM {table}") == [("a", T0 + 1)]
    late = pa.RecordBatch.from_pydict({"id": pa.array([2] * WINDOW_ROWS, pa.int64()), "name": ["z"] * WINDOW_ROWS})
    sink.apply(at(T0, slice_=0), [late, rows((2, "a"))])
    found = ask(cassandra.address, f"SELECT name, writetime(name) FROM {table} WHERE id = 2")
    assert found == [("a", T0 + SLICES_MAX)]


def test_a_delete_by_hand_is_not_undone_by_what_was_written_before_it(
    sink: Cassandra, cassandra: Node | Elsewhere, table: str
) -> None:
    """Stamps are times: an earlier epoch that is applied late stays deleted, and a later epoch writes again."""
    sink.apply(at(T0), [rows((1, "a"))])
    ask(cassandra.address, f"DELETE FROM {table} USING TIMESTAMP {T0 + 500} WHERE id = 1")
    sink.apply(at(T0), [rows((1, "a"))])
    assert ask(cassandra.address, f"SELECT id FROM {table}") == []
    sink.apply(at(T0 + 1000), [rows((1, "b"))])
    assert ask(cassandra.address, f"SELECT name FROM {table}") == [("b",)]


def test_windows_do_not_depend_on_how_rows_were_batched() -> None:
    whole = pa.RecordBatch.from_pydict({"id": list(range(2 * WINDOW_ROWS + 5))})
    parts = [whole.slice(start, 7) for start in range(0, whole.num_rows, 7)]
    cut = list(windows(parts))
    assert [window.num_rows for window in cut] == [WINDOW_ROWS, WINDOW_ROWS, 5]
    assert [n for window in cut for n in window.column(0).to_pylist()] == whole.column(0).to_pylist()
    assert [w.num_rows for w in windows([whole])] == [WINDOW_ROWS, WINDOW_ROWS, 5]
    assert stamp_us(at(T0, slice_=3), 2) == T0 + 2 * SLICES_MAX + 3


# -- types -------------------------------------------------------------------------------------------------------------

EVERY = {
    "id": (pa.int64(), 1, "bigint", t.LongType()),
    "a_text": (pa.string(), "ä", "text", t.StringType()),
    "an_id": (pa.string(), "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "uuid", t.StringType()),
    "an_int": (pa.int32(), 7, "int", t.IntegerType()),
    "a_wide": (pa.int32(), 7, "bigint", t.IntegerType()),
    "a_real": (pa.float64(), 1.5, "double", t.DoubleType()),
    "a_flag": (pa.bool_(), True, "boolean", t.BooleanType()),
    "a_blob": (pa.binary(), b"\x00\xff", "blob", t.BinaryType()),
    "a_sum": (pa.decimal128(10, 2), Decimal("12.30"), "decimal", t.DecimalType(10, 2)),
    "a_time": (pa.timestamp("us", "UTC"), 1_700_000_000_123_456, "timestamp", t.TimestampType()),
    "a_list": (pa.list_(pa.string()), ["x", "y"], "list<text>", t.ArrayType(t.StringType())),
    "a_set": (pa.list_(pa.int64()), [2, 1], "set<bigint>", t.ArrayType(t.LongType())),
    "a_map": (
        pa.map_(pa.string(), pa.int32()),
        [("k", 1)],
        "map<text, int>",
        t.MapType(t.StringType(), t.IntegerType()),
    ),
}


def test_every_type_arrives_as_it_was(cassandra: Node | Elsewhere) -> None:
    columns = ", ".join(f"{name} {cql}" for name, (_, _, cql, _) in EVERY.items())
    sink = Cassandra(cassandra.address, new_table(cassandra.address, f"{columns}, PRIMARY KEY (id)"))
    sink.columns(t.StructType([t.StructField(name, kind) for name, (_, _, _, kind) in EVERY.items()]), None)  # type: ignore[arg-type]
    sink.check(JobContext())
    batch = pa.RecordBatch.from_pydict({name: pa.array([value], kind) for name, (kind, value, _, _) in EVERY.items()})
    sink.screen(at(T0), batch)
    sink.apply(at(T0), [batch])
    (found,) = ask(cassandra.address, f"SELECT {', '.join(EVERY)} FROM {sink.table}")
    back = dict(zip(EVERY, found, strict=True))
    assert back["an_id"] == uuid.UUID(EVERY["an_id"][1])  # type: ignore[arg-type]
    assert back["a_time"].microsecond == 123_000, "Cassandra keeps milliseconds"
    assert (back["a_text"], back["a_sum"], back["a_blob"]) == ("ä", Decimal("12.30"), b"\x00\xff")
    assert (list(back["a_list"]), set(back["a_set"]), dict(back["a_map"])) == (["x", "y"], {1, 2}, {"k": 1})


SCHEMA = t.StructType([t.StructField("id", t.LongType()), t.StructField("name", t.StringType())])


def declared(sink: Cassandra, schema: t.StructType = SCHEMA) -> Cassandra:
    sink.columns(schema, None)  # type: ignore[arg-type]
    return sink


def test_a_table_is_made_if_that_is_wanted(cassandra: Node | Elsewhere, table: str) -> None:
    name = f"{KEYSPACE}.Made_{uuid.uuid4().hex[:8]}"
    with pytest.raises(SinkError, match=r"there is no table .*create=True and key="):
        declared(Cassandra(cassandra.address, name)).check(JobContext())
    sink = declared(Cassandra(cassandra.address, name, key=["id"], create=True))
    sink.check(JobContext())
    sink.check(JobContext())
    sink.apply(at(T0), [rows((1, "a"))])
    keyspace, _, plain = name.partition(".")
    assert ask(cassandra.address, f'SELECT id, name FROM {keyspace}."{plain}"') == [(1, "a")]


# -- what is refused before the start ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "schema", "why"),
    [
        ("id bigint PRIMARY KEY, name counter", SCHEMA, r"has the counter 'name'.*sent again counts again"),
        ("id bigint PRIMARY KEY, other text", SCHEMA, r"has no column 'name'.*ADD \"name\" text"),
        ("id int PRIMARY KEY, name text", SCHEMA, r"'id' of .* is int, and the rows have bigint.*cast it"),
        ("id bigint, day date, name text, PRIMARY KEY (id, day)", SCHEMA, r"key column 'day', and the rows have"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_at_the_start(
    cassandra: Node | Elsewhere, columns: str, schema: t.StructType, why: str
) -> None:
    sink = declared(Cassandra(cassandra.address, new_table(cassandra.address, columns)), schema)
    with pytest.raises(SinkError, match=why):
        sink.check(JobContext())


def test_a_server_or_keyspace_that_is_not_there_is_told(cassandra: Node | Elsewhere) -> None:
    with pytest.raises(SinkError, match=r"127\.0\.0\.1 port 1 cannot be reached.*tallystick servers status"):
        Cassandra("127.0.0.1:1", "k.t").check(JobContext())
    with pytest.raises(SinkError, match=r"no-such-node.invalid cannot be reached"):
        Cassandra("no-such-node.invalid", "k.t").check(JobContext())
    with pytest.raises(SinkError, match=r"there is no keyspace 'nowhere'.*CREATE KEYSPACE"):
        Cassandra(cassandra.address, "nowhere.t").check(JobContext())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"table": "t"}, "needed 'keyspace.table'"),
        ({"nulls": "drop"}, "needed one of write, keep"),
        ({"consistency": "SOME"}, "needed one of ONE"),
        ({"concurrency": 0}, "needed a number above 0"),
        ({"username": "me"}, "username and password go together"),
        ({"create": True}, "needs key="),
        ({"hosts": "a:1,b:2"}, "same port"),
        ({"hosts": "me:secret@a"}, "give user and password apart"),
        ({"request_timeout": "soon"}, "not a duration"),
        ({"tls": "yes"}, "needs ts.sinks.Tls"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_at_once(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        Cassandra(**{"hosts": "localhost", "table": "k.t", **settings})
    assert "secret" not in str(refused.value)


# -- what is refused before the decision -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "row", "why"),
    [
        ("id text PRIMARY KEY, v text", {"id": None, "v": "x"}, r"\{'id': None\}: the key column id is null"),
        ("id text PRIMARY KEY, v text", {"id": "", "v": "x"}, r"the partition key id is empty"),
        ("id text PRIMARY KEY, v text", {"id": "k" * 70000, "v": "x"}, r"has over 65535 bytes"),
        ("id text PRIMARY KEY, v ascii", {"id": "k7", "v": "ä"}, r"\{'id': 'k7'\}: v is ascii and the text is not"),
        ("id text PRIMARY KEY, v uuid", {"id": "k7", "v": "no"}, r"v is uuid and the text is not"),
        ("id text PRIMARY KEY, v text", {"id": "k7", "v": "x" * (3 << 20)}, r"the row has \d+ bytes, and the server"),
    ],
)
def test_a_row_that_the_server_would_refuse_is_told_with_its_key(
    cassandra: Node | Elsewhere, columns: str, row: dict[str, Any], why: str
) -> None:
    """And the server does refuse it: otherwise the check would be too strict."""
    sink = Cassandra(cassandra.address, new_table(cassandra.address, columns))
    sink.check(JobContext())
    batch = pa.RecordBatch.from_pylist(
        [{"id": "good", "v": None}, row], schema=pa.schema([("id", pa.string()), ("v", pa.string())])
    )
    with pytest.raises(RowRefusedError, match=why):
        sink.screen(at(T0), batch)
    sink.screen(at(T0), batch.slice(0, 1))
    with pytest.raises((SinkError, ValueError, OSError)):
        sink.apply(at(T0), [batch])


def test_rows_that_are_refused_after_all_are_told_with_their_key(sink: Cassandra, cassandra: Node | Elsewhere) -> None:
    """The table changed under the job: nothing could be known before the decision."""
    sink.apply(at(T0), [rows((1, "a"))])
    ask(cassandra.address, f"DROP TABLE {sink.table}")
    with pytest.raises(SinkError, match=r"the row \{'id': 2\}: .*"):
        sink.apply(at(T0), [rows((2, "b"))])


# -- secrets and TLS ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with started(Node(tmp_path_factory.mktemp("secured"), secured=True)) as node:
        yield node


@pytest.mark.slow  # starts a node of its own
def test_a_secured_node_is_written_to_and_a_wrong_password_is_told_without_it(secured: Node) -> None:
    tls = Tls(ca_file=str(secured.ca_file))
    right = Cassandra(secured.address, "k.t", username=USER, password=PASSWORD, tls=tls)
    session = right.connection.open()
    session.execute("CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute(f"CREATE TABLE k.t ({ROWS})")
    right.check(JobContext())
    right.apply(at(T0), [rows((1, "a"))])
    assert [tuple(row) for row in session.execute("SELECT id, name FROM k.t")] == [(1, "a")]
    session.cluster.shutdown()
    wrong = Cassandra(secured.address, "k.t", username=USER, password="wrong-secret", tls=tls)
    with pytest.raises(SinkError, match="refuses the user 'cassandra'") as refused:
        wrong.check(JobContext())
    assert "wrong-secret" not in str(refused.value)
    with pytest.raises(SinkError, match="cannot be reached"):
        Cassandra(secured.address, "k.t", username=USER, password=PASSWORD).check(JobContext())


def test_passwords_are_never_shown() -> None:
    sink = Cassandra("a", "k.t", username="me", password="p4ss", tls=Tls(cert_file="c", key_password="k3y"))
    for shown in (repr(sink), str(sink), sink.target, repr(sink.connection)):
        assert "p4ss" not in shown
        assert "k3y" not in shown


def test_a_missing_client_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cassandra.cluster", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tallystick\[cassandra\]'"):
        client.driver()


def test_outcomes_of_a_commit_are_named(sink: Cassandra, tmp_path: Path) -> None:
    from tallystick.sinks.staged import lower

    staged = lower(sink, tmp_path / "staging")
    transaction = staged.begin_transaction(at(T0))
    staged.write(transaction, rows((1, "a")))
    assert staged.commit_all([staged.pre_commit(transaction)], recovering=False) == [Outcome.COMMITTED]
