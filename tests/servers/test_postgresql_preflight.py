"""What would go wrong at night is said before the first epoch, by a real server; and no secret is in what is said."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from postgresql_tables import ask, new_table
from real_servers import started
from tallystick.errors import ConfigError, SinkError
from tallystick.servers import PostgreSQL as Server
from tallystick.sinks import JobContext, PostgreSQL

SECRET = "s3cret-Pa55word"
ROWS = StructType([StructField("id", LongType()), StructField("name", StringType())])
JOB = JobContext(schema=ROWS)


@pytest.fixture(scope="module")
def limited(postgresql: Server) -> Iterator[str]:
    """The address of a user with a password and without rights."""
    ask(postgresql.address, "CREATE ROLE passworded")
    ask(postgresql.address, f"CREATE ROLE limited LOGIN PASSWORD '{SECRET}' IN ROLE passworded")
    yield postgresql.address_of(postgresql.ports[0], "limited")
    ask(postgresql.address, "DROP OWNED BY limited; DROP ROLE limited; DROP ROLE passworded")


@pytest.fixture
def table(postgresql: Server) -> str:
    name = new_table()
    ask(postgresql.address, f"CREATE TABLE {name} (id bigint PRIMARY KEY, name text)")
    return name


def refused(dsn: str, table: str, job: JobContext = JOB, **settings: Any) -> str:
    with pytest.raises(SinkError) as failure:
        PostgreSQL(dsn, table, **settings).check(job)
    assert SECRET not in str(failure.value)
    return str(failure.value)


def test_nobody_answers(tmp_path: Path) -> None:
    said = refused("postgresql://nobody@127.0.0.1:1/none", "t")
    assert "no connection to 127.0.0.1:1/none" in said
    assert "refused" in said


def test_wrong_and_missing_passwords(limited: str, table: str) -> None:
    assert "password authentication failed" in refused(limited, table, options={"password": "wrong"})
    assert "no password supplied" in refused(limited, table)
    assert 'database "nowhere" does not exist' in refused(
        limited, table, options={"password": SECRET, "dbname": "nowhere"}
    )


def test_a_password_is_shown_nowhere(limited: str, caplog: pytest.LogCaptureFixture) -> None:
    for sink in (
        PostgreSQL(limited, "t", options={"password": SECRET}),
        PostgreSQL(limited.replace("limited@", f"limited:{SECRET}@"), "t"),
    ):
        assert SECRET not in f"{sink!r} {sink} {sink.target} {sink.server}"
        assert cloudpickle.loads(cloudpickle.dumps(sink)).parameters["password"] == SECRET  # type: ignore[no-untyped-call]
    with pytest.raises(ConfigError) as failure:
        PostgreSQL(f"host=x password={SECRET} nonsense={SECRET}", "t")
    assert SECRET not in str(failure.value)
    assert failure.value.__cause__ is None
    assert SECRET not in caplog.text


def test_rights_are_asked_for_with_what_to_type(postgresql: Server, limited: str, table: str) -> None:
    options = {"password": SECRET}
    said = refused(limited, table, options=options, schema="apart")
    assert 'CREATE SCHEMA "apart" AUTHORIZATION "limited"' in said
    ask(postgresql.address, 'CREATE SCHEMA "apart" AUTHORIZATION "limited"')
    assert f'GRANT INSERT ON {PostgreSQL(limited, table).quoted} TO "limited"' in refused(
        limited, table, options=options, schema="apart"
    )
    ask(postgresql.address, f'GRANT INSERT ON {table} TO "limited"')
    PostgreSQL(limited, table, options=options, schema="apart").check(JOB)
    upsert: dict[str, Any] = {"mode": "upsert", "key": ["id"], "options": options, "schema": "apart"}
    assert "may not SELECT, UPDATE on" in refused(limited, table, **upsert)
    said = refused(limited, table, options=options)
    assert "GRANT ALL ON SCHEMA" in said


def test_the_table_is_made_from_the_rows(postgresql: Server) -> None:
    table = new_table()
    sink = PostgreSQL(postgresql.address, table, mode="changes", key=["id"], delete_flag="gone")
    sink.check(JobContext(schema=StructType([*ROWS.fields, StructField("gone", BooleanType())])))
    found = ask(
        postgresql.address,
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(%s) "
        "AND attnum > 0 ORDER BY attnum",
        [table],
    )
    assert found == [("id", "bigint"), ("name", "text")]
    assert "there is no table nowhere" in refused(postgresql.address, "nowhere", create=False)


@pytest.mark.parametrize(
    ("columns", "settings", "said"),
    [
        ("id bigint", {}, "has no column 'name', which the rows have"),
        ("id bigint, name text, more int NOT NULL", {}, "the rows have no column 'more'"),
        ("id boolean, name text", {}, "the column 'id' of .* is boolean, the rows have bigint"),
        ("id bigint, name text GENERATED ALWAYS AS ('x') STORED", {}, "the server makes the column 'name'"),
        ("id bigint, name text", {"mode": "upsert", "key": ["id"]}, "has no unique index on just"),
    ],
)
def test_rows_and_table_must_fit(postgresql: Server, columns: str, settings: dict[str, Any], said: str) -> None:
    table = new_table()
    ask(postgresql.address, f"CREATE TABLE {table} ({columns})")
    with pytest.raises(SinkError, match=said):
        PostgreSQL(postgresql.address, table, **settings).check(JOB)


def test_what_a_crash_would_empty_and_what_is_no_table(postgresql: Server, table: str) -> None:
    unlogged, view = new_table(), new_table()
    ask(postgresql.address, f"CREATE UNLOGGED TABLE {unlogged} (id bigint, name text)")
    ask(postgresql.address, f"CREATE VIEW {view} AS SELECT * FROM {table}")
    assert "SET LOGGED" in refused(postgresql.address, unlogged)
    assert "is no table" in refused(postgresql.address, view)


def test_a_read_only_server(postgresql: Server, table: str) -> None:
    said = refused(postgresql.address, table, options={"options": "-c default_transaction_read_only=on"})
    assert "is read-only" in said


def test_a_server_without_prepared_transactions_or_fsync(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"max_prepared_transactions": "0", "fsync": "off"}
    with started(Server(tmp_path / "server", settings=settings)) as server, caplog.at_level(logging.WARNING):
        assert "allows no prepared transactions" in refused(server.address, "t", via="prepared")
        sink = PostgreSQL(server.address, "t")
        sink.check(JOB)
        assert "fsync off" in caplog.text


def test_tls_is_passed_through(tmp_path: Path) -> None:
    with started(Server(tmp_path / "server", tls=True)) as server:
        verified = {"sslmode": "verify-full", "sslrootcert": str(server.ca_file)}
        sink = PostgreSQL(server.address, "t", options=verified)
        sink.check(JOB)
        with sink.pool().use() as connection:
            assert connection.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone() == (True,)
        assert "certificate" in refused(server.address, "t", options={**verified, "sslrootcert": "/dev/null"})


@pytest.mark.parametrize(
    ("table", "settings", "said"),
    [
        ("a.b.c", {}, "needed 'table' or 'schema.table'"),
        ("t", {"mode": "replace"}, "needed one of append, upsert, changes"),
        ("t", {"mode": "upsert"}, "needs the key"),
        ("t", {"mode": "upsert", "key": "id"}, "needed a list of columns"),
        ("t", {"mode": "changes", "key": ["id"]}, "needs delete_flag"),
        ("t", {"mode": "upsert", "key": ["id"], "via": "prepared"}, "cannot be prepared"),
        ("t", {"via": "magic"}, "needed one of auto, prepared, staged"),
        ("t", {"lock_timeout": "soon"}, "not a duration"),
        ("t", {"options": {"application_name": "x"}}, "application_name is set by tallystick"),
    ],
)
def test_what_cannot_be_meant(table: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PostgreSQL("postgresql://localhost/db", table, **settings)
