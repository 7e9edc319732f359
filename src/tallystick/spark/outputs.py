"""What goes to which sink: one pass over the epoch's rows feeds all of them.

Spark may evaluate an epoch only once (state would advance twice otherwise), so several sinks cannot each run a query
of their own. Instead one projection carries, for every output, the row as that sink wants it and the row's hash.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tallystick.errors import ConfigError
from tallystick.sinks import letters
from tallystick.sinks.base import Sink
from tallystick.spark.fingerprint import row_hash
from tallystick.spark.slice_writer import DEAD_LETTERS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Output:
    """One sink of a job, and which part of the rows it gets.

    ``where`` is a SQL condition, ``select`` a list of column names or SQL expressions; without them the sink gets
    every row as it is. ``name`` is what the sink is called in the journal: keep it when you move the target.
    """

    sink: Sink
    name: str = ""
    where: str | None = None
    select: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sink, Sink):
            raise ConfigError(f"an output needs a sink, found {type(self.sink).__name__}: try ts.sinks.Files(path)")
        if not self.name:
            object.__setattr__(self, "name", self.sink.facts.name)
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", self.name):
            raise ConfigError(f"the output name {self.name!r} is not usable: letters, digits, '_', '-' and '.' only")
        if self.where is not None and (not isinstance(self.where, str) or not self.where.strip()):
            raise ConfigError(f"output {self.name}: where needs a SQL condition such as 'id > 0', found {self.where!r}")
        if self.select is not None:
            _check_select(self.name, self.select)


def _check_select(output: str, select: Sequence[str]) -> None:
    listed = isinstance(select, Sequence) and not isinstance(select, str)
    if not listed or not select or not all(isinstance(text, str) and text.strip() for text in select):
        raise ConfigError(
            f"output {output}: select needs a list of columns or SQL expressions such as ['id'], found {select!r}"
        )


def outputs_of(sinks: Sink | Output | Sequence[Sink | Output]) -> tuple[Output, ...]:
    """The outputs of a job as the user gave them: a sink, an output, or several; names are made unique."""
    given = [sinks] if isinstance(sinks, Sink | Output) else sinks
    if not isinstance(given, list | tuple):
        raise ConfigError(f"a job needs a sink such as ts.sinks.Files(path), or a list of them, found {given!r}")
    if not given:
        raise ConfigError("a job needs at least one sink, found none")
    outputs: list[Output] = []
    for entry in given:
        output = entry if isinstance(entry, Output) else Output(entry)
        taken = {other.name for other in outputs}
        if isinstance(entry, Output) and entry.name != entry.sink.facts.name and entry.name in taken:
            raise ConfigError(f"two outputs are called {entry.name!r}: each needs a name of its own")
        number, name = 2, output.name
        while name in taken:
            name, number = f"{output.name}-{number}", number + 1
        if any(other.sink.target == output.sink.target for other in outputs):
            raise ConfigError(
                f"two outputs write to {output.sink.target}: one could not tell its open transactions from the "
                "other's. give each a target of its own"
            )
        outputs.append(Output(output.sink, name, output.where, output.select))
    return tuple(outputs)


def dead_letters_of(sink: Sink | None, outputs: Sequence[Output]) -> Output | None:
    """The output for rows that others refuse, checked beside them; None if the job has none."""
    if sink is None:
        return None
    if not isinstance(sink, Sink):
        raise ConfigError(f"dead_letters needs a sink such as ts.sinks.Files(path), found {type(sink).__name__}")
    if any(other.name == DEAD_LETTERS for other in outputs):
        raise ConfigError(
            f"an output is called {DEAD_LETTERS!r}, which is the name of the one for refused rows: rename it"
        )
    if any(other.sink.target == sink.target for other in outputs):
        raise ConfigError(f"dead_letters is {sink.target}, where another output writes: give it a target of its own")
    sink.letters(letters.none())
    return Output(sink, DEAD_LETTERS)


def projection(rows: DataFrame, outputs: Sequence[Output]) -> list[Column]:
    """One projection for all outputs, made once per query: the schema of its epochs does not change.

    Its columns are ``r0, h0, r1, h1, …``: row (null where not wanted) and hash per output. A single output that takes
    every row is laid out flat instead, its columns and then the hash: structs cost.
    """
    if len(outputs) == 1 and outputs[0].where is None:
        columns, digest = _shaped(rows, outputs[0])
        return [*columns, digest.alias("h0")]
    selected: list[Column] = []
    for number, output in enumerate(outputs):
        columns, digest = _shaped(rows, output)
        row = F.struct(*columns)
        if output.where is not None:
            row = F.when(F.expr(output.where), row)
        selected += [row.alias(f"r{number}"), digest.alias(f"h{number}")]
    return selected


def is_flat(outputs: Sequence[Output]) -> bool:
    """Whether `projection` lays the rows out flat."""
    return len(outputs) == 1 and outputs[0].where is None


def schema_for(rows: DataFrame, output: Output) -> StructType:
    """What an output takes of the rows, before its sink shapes it."""
    return rows.select(*_chosen(rows, output)).schema


def _shaped(rows: DataFrame, output: Output) -> tuple[list[Column], Column]:
    """The columns for the sink's `write`, and the hash of the row before the sink shaped it."""
    chosen, schema = _chosen(rows, output), schema_for(rows, output)
    by_name = dict(zip(schema.fieldNames(), chosen, strict=True))
    digest = row_hash(
        [(column, field.dataType, field.nullable) for column, field in zip(chosen, schema.fields, strict=True)]
    )
    shaped = output.sink.columns(schema, by_name.__getitem__)
    if shaped is None:
        shaped = [column.alias(name) for name, column in by_name.items()]
    return list(shaped), digest


def _chosen(rows: DataFrame, output: Output) -> list[Column]:
    return [F.expr(text) for text in output.select] if output.select is not None else _all(rows.schema)


def _all(schema: StructType) -> list[Column]:
    return [F.col(f"`{name.replace('`', '``')}`") for name in schema.fieldNames()]
