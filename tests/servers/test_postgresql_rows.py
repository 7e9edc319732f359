"""Rows on a real server: every type arrives as it left, bad ones are named, keys come in order, slots run out."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from postgresql_tables import ask, new_table, prepared, staged
from tallystick.errors import RowRefusedError, SinkError
from tallystick.records import Json, Outcome
from tallystick.servers import PostgreSQL as Server
from tallystick.servers import Way
from tallystick.sinks import JobContext, PostgreSQL
from tallystick.sinks.postgresql import driver as driver_module
from tallystick.sinks.postgresql import stage as stage_module
from tallystick.sinks.postgresql import transaction as transaction_module
from tallystick.testing.sinks import JOB, context

NAN = float("nan")


def prepare(sink: PostgreSQL, rows: pa.RecordBatch, **where: Any) -> Json:
    transaction = sink.begin_transaction(context(**where))
    try:
        sink.write(transaction, rows)
        return sink.pre_commit(transaction)
    except BaseException:
        sink.rollback(transaction)
        raise


def batch(**columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: list(values) for name, values in columns.items()})


def made(postgresql: Server, columns: str, **settings: Any) -> PostgreSQL:
    table = new_table()
    ask(postgresql.address, f"CREATE TABLE {table} ({columns})")
    sink = PostgreSQL(postgresql.address, table, **settings)
    sink.check(JobContext())
    return sink


@pytest.mark.parametrize("via", ["prepared", "staged"])
def test_every_type_arrives_as_it_left(postgresql: Server, via: str) -> None:
    utc = dt.timezone.utc
    values: dict[str, tuple[str, pa.DataType, list[Any]]] = {
        "flag": ("boolean", pa.bool_(), [True, None]),
        "small": ("smallint", pa.int16(), [-32768, None]),
        "big": ("bigint", pa.int64(), [2**63 - 1, None]),
        "single": ("real", pa.float32(), [-0.5, None]),
        "double": ("float8", pa.float64(), [1e-300, float("-inf")]),
        "exact": ("numeric(38,6)", pa.decimal128(38, 6), [Decimal("-123456789012345678901234567890.123456"), None]),
        "words": ("text", pa.string(), ['";\n\\.', ""]),
        "raw": ("bytea", pa.string(), ["\\x00ff", None]),
        "day": ("date", pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        "at": (
            "timestamptz",
            pa.timestamp("us", "Europe/Berlin"),
            [dt.datetime(2026, 3, 29, 1, 59, 59, 999999, utc), None],
        ),
        "wall": ("timestamp", pa.timestamp("us"), [dt.datetime(1969, 12, 31, 23, 59, 59, 1), None]),
        "tree": ("jsonb", pa.string(), ['{"a": [1, null]}', None]),
    }
    sink = made(postgresql, ", ".join(f"{name} {kind}" for name, (kind, _, _) in values.items()), via=via)
    rows = pa.RecordBatch.from_pydict({name: pa.array(cells, kind) for name, (_, kind, cells) in values.items()})
    assert sink.commit(prepare(sink, rows)) is Outcome.COMMITTED
    found = ask(postgresql.address, f"SELECT * FROM {sink.table} ORDER BY small")
    expected = [list(row) for row in zip(*(cells for _, _, cells in values.values()), strict=True)]
    for row, first in zip(expected, (True, False), strict=True):
        row[list(values).index("raw")] = b"\x00\xff" if first else None
        row[list(values).index("tree")] = {"a": [1, None]} if first else None
    assert [list(row) for row in found] == expected


def assert_nothing_stays_open(sink: PostgreSQL) -> None:
    """The server ends a session a moment after its client has closed it."""
    deadline = time.monotonic() + 10
    while found := list(sink.open_transactions(JOB)):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


@pytest.mark.parametrize("via", ["prepared", "staged"])
@pytest.mark.parametrize(
    ("columns", "rows", "said"),
    [
        ("id bigint, n smallint", {"id": [7, 8, 9], "n": [1, 99999, 2]}, ['{"id": 8, "n": 99999}', "out of range"]),
        ("id bigint, t varchar(3)", {"id": [7, 8], "t": ["a\nb", "long\nlong"]}, ['"id": 8', "too long"]),
        ("id bigint, t varchar(3)", {"id": [7, 8, 9], "t": ["a\nb", "x", "long"]}, ['"id": 9', "too long"]),
        ("id bigint, t text", {"id": [7, 8, 9], "t": ["a", "nul\0", "b"]}, ['"id": 8', "0x00"]),
        ("id bigint, t text", {"id": [7, 8], "t": ["ok", "nul\0"]}, ['"id": 8', "0x00"]),
        ("id bigint, t text NOT NULL", {"id": [7, 8], "t": ["ok", None]}, ['"id": 8', "not-null"]),
        ("id bigint CHECK (id < 8)", {"id": [7, 8]}, ['"id": 8', "check constraint"]),
        ("id bigint PRIMARY KEY, t text", {"id": [7, 8, 7], "t": ["a", "b", "c"]}, ["Key (id)=(7) already exists"]),
    ],
)
def test_a_row_that_is_refused_is_named(
    postgresql: Server, via: str, columns: str, rows: dict[str, list[Any]], said: list[str]
) -> None:
    sink = made(postgresql, columns, via=via)
    with pytest.raises(RowRefusedError) as failure:
        prepare(sink, batch(**rows))
    for words in said:
        assert words in str(failure.value)
    assert ask(postgresql.address, f"SELECT * FROM {sink.table}") == []
    assert_nothing_stays_open(sink)


@pytest.mark.parametrize(
    ("columns", "index", "value", "said"),
    [
        ("id bigint, t text", "(t)", os.urandom(2000).hex(), "index row"),
        ("id bigint, t text", "USING btree ((1 / length(t)))", "", "division by zero"),
        ("id bigint, t text, n int GENERATED ALWAYS AS (1 / length(t)) STORED", "(id)", "", "division by zero"),
    ],
    ids=["too-large", "index-on-an-expression", "generated-column"],
)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_what_only_an_index_or_a_generated_column_refuses_is_found_before_the_decision(
    postgresql: Server, mode: str, columns: str, index: str, value: str, said: str
) -> None:
    """A staging table has neither: the row would be found when the epoch is decided, and nobody could take it back."""
    upsert: dict[str, Any] = {"mode": "upsert", "key": ["id"]} if mode == "upsert" else {"via": "staged"}
    sink = made(postgresql, columns.replace("id bigint", "id bigint PRIMARY KEY"), **upsert)
    ask(postgresql.address, f"CREATE INDEX ON {sink.table} {index}")
    with pytest.raises(RowRefusedError, match=said):
        prepare(sink, batch(id=[1, 2], t=["good", value]))
    assert_nothing_stays_open(sink)
    assert sink.commit(prepare(sink, batch(id=[1], t=["good"]))) is Outcome.COMMITTED


@pytest.mark.parametrize("ids", [[1, 5, 7], [7, 5, 1], [1, 2, 5]])
def test_a_key_that_is_in_the_table_fails_the_slice_in_whatever_order_keys_come(
    postgresql: Server, ids: list[int]
) -> None:
    sink = made(postgresql, "id bigint PRIMARY KEY, t text")
    ask(postgresql.address, f"INSERT INTO {sink.table} VALUES (0, 'zero'), (5, 'five')")
    with pytest.raises(RowRefusedError, match=r"Key \(id\)=\(5\) already exists"):
        prepare(sink, batch(id=ids, t=["x"] * 3))
    assert_nothing_stays_open(sink)
    for free in ([1, 2, 3], [9, 8, 7]):  # below what is there, and around it
        assert sink.commit(prepare(sink, batch(id=free, t=["x"] * 3))) is Outcome.COMMITTED
        ask(postgresql.address, "DELETE FROM tallystick.tokens")


def test_what_only_the_target_knows_is_rehearsed_before_the_decision(postgresql: Server) -> None:
    """A foreign key is not copied to the staging table. Deferred or not, it is asked before the slice votes."""
    parent = new_table()
    ask(postgresql.address, f"CREATE TABLE {parent} (id bigint PRIMARY KEY)")
    reference = f"REFERENCES {parent} DEFERRABLE INITIALLY DEFERRED"
    sink = made(postgresql, f"id bigint PRIMARY KEY, parent bigint {reference}", mode="upsert", key=["id"])
    with pytest.raises(RowRefusedError, match=r"Key \(parent\)=\(5\) is not present"):
        prepare(sink, batch(id=[1], parent=[5]))
    ask(postgresql.address, f"INSERT INTO {parent} VALUES (5)")
    committable = prepare(sink, batch(id=[1], parent=[5]))
    assert ask(postgresql.address, f"SELECT * FROM {sink.table}") == []
    assert sink.commit(committable) is Outcome.COMMITTED
    assert ask(postgresql.address, f"SELECT * FROM {sink.table}") == [(1, 5)]


def test_a_decided_slice_that_is_refused_waits_for_a_person(
    postgresql: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody else takes the key after the slice was checked. Nothing of the slice is moved, nothing is dropped."""
    sink = made(postgresql, "id bigint PRIMARY KEY, t text", via="staged")
    committables = [prepare(sink, batch(id=[one], t=["ours"]), slice_=one) for one in (0, 1)]
    ask(postgresql.address, f"INSERT INTO {sink.table} VALUES (1, 'theirs')")
    assert sink.commit_all(committables, recovering=False) == [Outcome.COMMITTED, Outcome.REFUSED]
    assert "Key (id)=(1) already exists" in caplog.text
    assert ask(postgresql.address, f"SELECT * FROM {sink.table} ORDER BY id") == [(0, "ours"), (1, "theirs")]
    ask(postgresql.address, f"DELETE FROM {sink.table} WHERE t = 'theirs'")
    assert sink.commit_all(committables, recovering=True) == [Outcome.ALREADY_COMMITTED, Outcome.COMMITTED]
    assert ask(postgresql.address, f"SELECT * FROM {sink.table} ORDER BY id") == [(0, "ours"), (1, "ours")]


def test_of_several_rows_with_one_key_the_last_one_stays(postgresql: Server) -> None:
    """Within a slice by the order of rows, between slices of an epoch by the number of the slice."""
    sink = made(postgresql, "id bigint PRIMARY KEY, t text", mode="upsert", key=["id"])
    second = prepare(sink, batch(id=[1, 3], t=["slice 1", "slice 1"]), slice_=1)
    first = prepare(sink, batch(id=[1, 2, 2], t=["slice 0", "a", "b"]), slice_=0)
    assert sink.commit_all([first, second], recovering=False) == [Outcome.COMMITTED] * 2
    found = ask(postgresql.address, f"SELECT * FROM {sink.table} ORDER BY id")
    assert found == [(1, "slice 1"), (2, "b"), (3, "slice 1")]
    assert staged(postgresql.address, sink.prefix(JOB)) == []


def test_a_slice_behind_one_that_waits_waits_too(postgresql: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is moved by another transaction: else the earlier slice would come last and win."""
    monkeypatch.setattr(stage_module, "AT_ONCE", 1)
    sink = made(postgresql, "id bigint PRIMARY KEY, t text", mode="upsert", key=["id"], lock_timeout="200ms")
    slices = [
        prepare(sink, batch(id=[1, 2], t=["slice 0", "slice 0"]), slice_=0),
        prepare(sink, batch(id=[2], t=["slice 1"]), slice_=1),
    ]
    with psycopg.connect(postgresql.address) as other:
        other.execute(f"INSERT INTO {sink.table} VALUES (1, 'somebody else')")
        assert sink.commit_all(slices, recovering=False) == [Outcome.RETRY_LATER] * 2
    assert sink.commit_all(slices, recovering=False) == [Outcome.COMMITTED] * 2
    assert ask(postgresql.address, f"SELECT * FROM {sink.table} ORDER BY id") == [(1, "slice 0"), (2, "slice 1")]


def test_slices_that_append_are_moved_side_by_side(postgresql: Server) -> None:
    """One that cannot be moved just now does not keep the others."""
    sink = made(postgresql, "id bigint PRIMARY KEY", via="staged", lock_timeout="200ms")
    slices = [prepare(sink, batch(id=[number]), slice_=number) for number in range(3)]
    with psycopg.connect(postgresql.address) as other:
        other.execute(f"INSERT INTO {sink.table} VALUES (1)")
        outcomes = sink.commit_all(slices, recovering=False)
        assert outcomes == [Outcome.COMMITTED, Outcome.RETRY_LATER, Outcome.COMMITTED]
        other.rollback()
    answers = sink.commit_all(slices, recovering=True)
    assert answers == [Outcome.ALREADY_COMMITTED, Outcome.COMMITTED, Outcome.ALREADY_COMMITTED]
    assert ask(postgresql.address, f"SELECT id FROM {sink.table} ORDER BY id") == [(0,), (1,), (2,)]


def test_changes_delete_and_bring_back(postgresql: Server) -> None:
    """A deletion needs the key alone; columns that may not be null elsewhere may be null in it."""
    sink = made(postgresql, "id bigint PRIMARY KEY, t text NOT NULL", mode="changes", key=["id"], delete_flag="gone")
    flags: list[list[Any]] = [[1, 2, 3, 1, 3], ["a", "b", "c", None, "d"], [False, False, False, True, False]]
    assert sink.commit(prepare(sink, batch(id=flags[0], t=flags[1], gone=flags[2]))) is Outcome.COMMITTED
    assert ask(postgresql.address, f"SELECT * FROM {sink.table} ORDER BY id") == [(2, "b"), (3, "d")]
    again = batch(id=[2, 1, 9], t=[None, "back", None], gone=[True, False, True])
    assert sink.commit(prepare(sink, again, epoch=1)) is Outcome.COMMITTED
    assert ask(postgresql.address, f"SELECT * FROM {sink.table} ORDER BY id") == [(1, "back"), (3, "d")]
    with pytest.raises(RowRefusedError, match="not-null"):
        prepare(sink, batch(id=[4], t=[None], gone=[False]), epoch=2)


def test_two_slices_with_one_unique_key_fail_clearly_when_prepared(postgresql: Server) -> None:
    """The second waits for the first, that for the driver, that for the second: the server cannot see it."""
    sink = made(postgresql, "id bigint PRIMARY KEY", via="prepared", lock_timeout="200ms")
    prepare(sink, batch(id=[1]), slice_=0)
    with pytest.raises(SinkError, match="waited in vain for a lock"):
        prepare(sink, batch(id=[1]), slice_=1)
    for found in sink.open_transactions(JOB):
        sink.abort(found.committable)
    assert prepared(postgresql.address, sink.prefix(JOB)) == []


def test_a_table_with_unique_keys_is_never_prepared_by_default(postgresql: Server) -> None:
    plain = made(postgresql, "id bigint")
    assert prepare(plain, batch(id=[1]))["way"] == "prepared"
    plain.settled(JOB, 0)
    unique = made(postgresql, "id bigint UNIQUE")
    assert prepare(unique, batch(id=[1]))["way"] == "staged"
    unique.settled(JOB, 0)


def test_out_of_prepared_transactions(postgresql: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """All places are taken: the slice waits a while, then fails with the setting to raise; nothing is left behind."""
    monkeypatch.setattr(transaction_module, "SLOT_PATIENCE_S", 0.3)
    ((slots,),) = ask(postgresql.address, "SELECT current_setting('max_prepared_transactions')::int")
    sink = made(postgresql, "id bigint")
    committables = [prepare(sink, batch(id=[number]), slice_=number) for number in range(slots)]
    with pytest.raises(SinkError, match=f"all {slots} are taken.*raise max_prepared_transactions"):
        prepare(sink, batch(id=[slots]), slice_=slots)
    assert sink.commit(committables[0]) is Outcome.COMMITTED
    committables.append(prepare(sink, batch(id=[slots]), slice_=slots))
    for found in sink.open_transactions(JOB):
        sink.abort(found.committable)
    assert prepared(postgresql.address, sink.prefix(JOB)) == []
    assert sink.commit_all(committables, recovering=True) == [Outcome.ALREADY_COMMITTED, *[Outcome.EXPIRED] * slots]


def test_the_session_of_a_task_that_outlived_its_attempt_is_ended(postgresql: Server) -> None:
    sink = made(postgresql, "id bigint")
    late = sink.begin_transaction(context(generation=1))
    sink.write(late, batch(id=[1]))
    [found] = sink.open_transactions(JOB)
    assert found.state.value == "begun"
    sink.abort(found.committable)
    assert list(sink.open_transactions(JOB)) == []
    with pytest.raises(SinkError):
        sink.pre_commit(late)
    sink.rollback(late)
    assert prepared(postgresql.address, sink.prefix(JOB)) == []


def test_a_trigger_that_drops_rows_is_noticed(postgresql: Server) -> None:
    sink = made(postgresql, "id bigint")
    ask(
        postgresql.address,
        "CREATE OR REPLACE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    )
    ask(
        postgresql.address,
        f"CREATE TRIGGER lossy BEFORE INSERT ON {sink.table} FOR EACH ROW EXECUTE FUNCTION nothing()",
    )
    with pytest.raises(SinkError, match="kept 0 of 1 rows"):
        prepare(sink, batch(id=[1]))


def test_a_copied_checkpoint_of_a_living_job_is_refused(postgresql: Server) -> None:
    sink = made(postgresql, "id bigint")
    living = sink.begin_transaction(context())
    moved = JobContext(job_id=JOB, moved=True)
    with pytest.raises(SinkError, match="a living job uses transactions named"):
        sink.check(moved)
    sink.rollback(living)


def test_a_move_that_takes_long_is_waited_for(postgresql: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience is for answers that are lost: a server that is at work is left to it."""
    monkeypatch.setattr(driver_module, "PATIENCE_S", 0.2)
    sink = made(postgresql, "id bigint", via="staged")
    committable = prepare(sink, batch(id=[1]))
    ask(
        postgresql.address,
        "CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(1); RETURN NEW; END'",
    )
    ask(postgresql.address, f"CREATE TRIGGER slow BEFORE INSERT ON {sink.table} FOR EACH ROW EXECUTE FUNCTION slow()")
    assert sink.commit(committable) is Outcome.COMMITTED
    assert ask(postgresql.address, f"SELECT * FROM {sink.table}") == [(1,)]


@pytest.mark.parametrize("via", ["prepared", "staged"])
def test_a_commit_whose_answer_is_lost_is_unknown_then_known(
    postgresql: Server, monkeypatch: pytest.MonkeyPatch, via: str
) -> None:
    monkeypatch.setattr(driver_module, "PATIENCE_S", 0.3)
    table = made(postgresql, "id bigint").table
    with postgresql.proxy() as proxy:
        sink = PostgreSQL(postgresql.address_of(proxy.port), table, via=via, options={"connect_timeout": "2"})
        committable = prepare(sink, batch(id=[1]))
        assert list(sink.open_transactions(JOB)), "the driver is connected, too"
        proxy.hold(Way.TO_CLIENT)
        assert sink.commit(committable).unsettled
        proxy.heal()
        assert sink.commit(committable).confirmed
    assert ask(postgresql.address, f"SELECT * FROM {table}") == [(1,)]


def test_a_lock_that_somebody_holds_is_waited_for_later(postgresql: Server) -> None:
    sink = made(postgresql, "id bigint", via="staged", lock_timeout="200ms")
    committable = prepare(sink, batch(id=[1]))
    with psycopg.connect(postgresql.address) as other:
        other.execute(f"LOCK TABLE {sink.table} IN ACCESS EXCLUSIVE MODE")
        assert sink.commit(committable) is Outcome.RETRY_LATER
    assert sink.commit(committable) is Outcome.COMMITTED


@pytest.mark.parametrize("via", ["prepared", "staged"])
def test_a_server_that_becomes_read_only_is_told_and_waited_for(postgresql: Server, via: str) -> None:
    """As after a failover to a standby: nothing is refused for good, nothing is dropped, nothing is left behind."""
    sink = made(postgresql, "id bigint", via=via)
    committable = prepare(sink, batch(id=[1]))
    standby = PostgreSQL(
        postgresql.address, sink.table, via=via, options={"options": "-c default_transaction_read_only=on"}
    )
    with pytest.raises(SinkError, match=r"read-only transaction"):
        prepare(standby, batch(id=[2]), epoch=1)
    if via == "staged":
        assert standby.commit(committable) is Outcome.RETRY_LATER
    assert sink.commit(committable) is Outcome.COMMITTED
    assert ask(postgresql.address, f"SELECT id FROM {sink.table}") == [(1,)]
    assert list(sink.open_transactions(JOB)) == []
