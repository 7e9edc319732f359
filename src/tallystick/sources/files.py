"""Files of a folder, with Spark's own streaming file source and settings that do not lose rows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING

from tallystick.errors import ConfigError
from tallystick.guarantees import SourceFacts
from tallystick.records import Json, Mode
from tallystick.sources.base import RangeSource, SourceLog, need_whole
from tallystick.sources.lag import Lag
from tallystick.sources.rows import parse_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_CHOICE = frozenset({"pathGlobFilter", "recursiveFileLookup", "maxFileAge"})
_TEXT_LIKE = frozenset({"encoding", "lineSep"})
_PARSED = _TEXT_LIKE | {"mode", "dateFormat", "timestampFormat", "timestampNTZFormat", "locale", "timeZone"}

OPTIONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "csv": _CHOICE
        | _PARSED
        | {"sep", "header", "quote", "escape", "comment", "nullValue", "emptyValue", "multiLine", "enforceSchema"}
        | {"ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "columnNameOfCorruptRecord", "maxCharsPerColumn"},
        "json": _CHOICE
        | _PARSED
        | {"multiLine", "primitivesAsString", "allowComments", "columnNameOfCorruptRecord", "allowSingleQuotes"},
        "orc": _CHOICE,
        "parquet": _CHOICE | {"datetimeRebaseMode", "int96RebaseMode"},
        "text": _CHOICE | _TEXT_LIKE | {"wholetext"},
    }
)
"""The formats, and the options of each that a declaration may set. None of them can lose or repeat rows."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "cleanSource": "it removes files that a restart may have to read again",
        "ignoreCorruptFiles": "it drops the rows of files that cannot be read",
        "ignoreMissingFiles": "it drops the rows of files that are gone when an epoch is repeated",
        "latestFirst": "it can leave the oldest files unread for ever",
        "maxFilesPerTrigger": "declare max_files_per_epoch= instead",
        "fileNameOnly": "it takes files of the same name in two folders for one",
    }
)

SAFE: Mapping[str, str] = MappingProxyType(
    {
        "ignoreCorruptFiles": "false",
        "ignoreMissingFiles": "false",
        # Spark's seven days would pass over a file that arrives late with an old date, for example by a rename.
        "maxFileAge": "36500d",
    }
)
"""Set on every load, because the session may say otherwise."""

CORRUPT_RECORD = "_corrupt_record"
"""Where Spark puts a line that it cannot parse, unless it is told another column."""

SAFE_PARSING: Mapping[str, str] = MappingProxyType({"mode": "FAILFAST"})
"""Spark's default turns a line that it cannot parse into empty values without a word."""


@dataclass(frozen=True)
class Files(RangeSource):
    """Every file that appears in a folder, read once.

    ``schema`` is a `StructType` or words such as ``id long, app string``; ``text`` has one of its own. Names that
    start with a dot or an underscore are not read, and so neither is what a Files sink is still staging in
    ``.tallystick``. ``max_files_per_epoch`` bounds an epoch. Lines that cannot be parsed stop the job, unless
    ``options={"mode": "PERMISSIVE"}`` keeps each as a row that has it in the column ``_corrupt_record string``, which
    the schema must have then; give those rows an output of their own: ``where="_corrupt_record IS NOT NULL"``.

    A file must be complete when it appears (write it elsewhere and rename it), must not change, and must stay until
    the epoch that reads it is committed.
    """

    facts = SourceFacts(
        "files",
        Mode.EXACTLY_ONCE,
        "Spark logs the files of an epoch before it reads them",
        "files are complete when they appear, do not change and stay until they are read",
    )

    path: str | os.PathLike[str]
    format: str
    schema: StructType | str | None = None
    max_files_per_epoch: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        need_whole("files", max_files_per_epoch=self.max_files_per_epoch)
        _need_folder(os.fspath(self.path))
        if self.format not in OPTIONS:
            raise ConfigError(f"files: unknown format {self.format!r}, needed one of {', '.join(sorted(OPTIONS))}")
        if self.schema is None and self.format != "text":
            raise ConfigError(
                f"files: {self.format} needs schema=, such as 'id long, app string'; it is not guessed from the files"
            )
        object.__setattr__(self, "options", MappingProxyType(_checked(self.format, self.options)))

    @property
    def name(self) -> str:
        return f"files:{os.fspath(self.path)}"

    def load(self, spark: SparkSession) -> DataFrame:
        from pyspark.errors import AnalysisException

        self._need_place_for_bad_lines()
        reader = spark.readStream.format(self.format).schema(self._columns()).options(**self._all_options())
        try:
            return reader.load(os.fspath(self.path))
        except AnalysisException as error:
            first_line = str(error).strip().splitlines()[0]
            raise ConfigError(f"files: {self.path} cannot be read: {first_line}") from error

    def load_range(self, spark: SparkSession, start: Json, end: Json, log: SourceLog) -> DataFrame:
        """File after file, in the order in which the stream found them."""
        first, last = -1 if start is None else int(start["logOffset"]), int(end["logOffset"])
        entries = [json.loads(line) for line in log() if line.startswith("{")]
        read = [entry for entry in entries if first < int(entry["batchId"]) <= last]
        ordered = sorted(read, key=lambda entry: (entry["batchId"], entry["timestamp"], entry["path"]))
        paths = dict.fromkeys(str(entry["path"]) for entry in ordered)
        columns, options = self._columns(), self._all_options()
        frames = [spark.read.format(self.format).schema(columns).options(**options).load(path) for path in paths]
        return reduce(lambda one, other: one.union(other), frames, spark.createDataFrame([], columns))

    def _columns(self) -> StructType:
        declared = "value string" if self.schema is None else self.schema
        return parse_ddl(declared) if isinstance(declared, str) else declared

    def _need_place_for_bad_lines(self) -> None:
        """What is wrong with a schema in words shows when Spark has parsed it."""
        if self.options.get("mode", "").upper() != "PERMISSIVE":
            return
        column = self.options.get("columnNameOfCorruptRecord", CORRUPT_RECORD)
        found = {field.name: field.dataType.simpleString() for field in self._columns()}
        if found.get(column) != "string":
            raise ConfigError(
                f"files: with mode PERMISSIVE the text of a line that cannot be parsed would be dropped without a "
                f"word: add the column {column} string to the schema, which then has it"
            )

    def _describe(self, offset: Json) -> str | None:
        return f"log {offset['logOffset']}" if isinstance(offset, dict) and "logOffset" in offset else None

    def lag(self, read: Json, log: SourceLog, spark: SparkSession | None = None) -> Lag:
        """Files that no epoch up to this one has in Spark's log; and those that have changed since they were logged."""
        from tallystick.sources.files_lag import unread

        last = -1 if read is None else int(read["logOffset"])
        entries = [json.loads(line) for line in log() if line.startswith("{")]
        known = {str(entry["path"]): int(entry["timestamp"]) for entry in entries if int(entry["batchId"]) <= last}
        return unread(os.fspath(self.path), self.options.get("pathGlobFilter"), known, spark)

    def _all_options(self) -> dict[str, str]:
        parsing = SAFE_PARSING if self.format in ("csv", "json") else {}
        limit = {} if self.max_files_per_epoch is None else {"maxFilesPerTrigger": str(self.max_files_per_epoch)}
        return {**SAFE, **parsing, **self.options, **limit}


def _need_folder(path: str) -> None:
    if not path:
        raise ConfigError("files: the path is empty, needed a folder")
    if any(character in path for character in "*?[{"):
        # A pattern also matches names with a dot, and Spark then reads what is inside them: staged files.
        raise ConfigError(
            f"files: {path!r} is a pattern, needed a folder. choose files in it with "
            "options={'pathGlobFilter': '*.csv'}"
        )


def _checked(format_name: str, options: Mapping[str, str]) -> dict[str, str]:
    known = {option.lower(): option for option in OPTIONS[format_name]}  # Spark does not mind capitals
    refused = {option.lower(): why for option, why in REFUSED.items()}
    for option, value in options.items():
        if option.lower() in refused:
            raise ConfigError(f"files: the option {option} is refused: {refused[option.lower()]}")
        if option.lower() not in known:
            raise ConfigError(
                f"files: {format_name} has no option {option!r}, needed one of {', '.join(sorted(known.values()))}"
            )
        if option.lower() == "mode" and value.upper() not in ("FAILFAST", "PERMISSIVE"):
            raise ConfigError(f"files: mode {value} drops lines that cannot be parsed, needed FAILFAST or PERMISSIVE")
    return {known[option.lower()]: value for option, value in options.items()}
