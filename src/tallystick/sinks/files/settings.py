"""The settings of a file sink, checked when it is declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tallystick.config import duration_s
from tallystick.errors import ConfigError
from tallystick.sinks.files.formats import FORMATS, Format


@dataclass(frozen=True)
class Settings:
    """Values of one file sink; `Files` documents them. Whatever is wrong is a `ConfigError` that says what to write.

    ``target`` is where files are published, in the words that errors use.
    """

    target: str
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    compression: str = "none"
    roll_bytes: int | None = None
    roll_age_s: float | None = None
    row_group_bytes: int = 32 << 20
    required: tuple[str, ...] = ()
    header: bool = False
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> Format:
        return FORMATS[self.format]

    @property
    def codec(self) -> str | None:
        return self.spec.compressions[self.compression][0]

    @property
    def extension(self) -> str:
        return self.spec.extension(self.compression)

    @property
    def group_bytes(self) -> int:
        """A row group is never larger than a file should become."""
        return min(self.row_group_bytes, self.roll_bytes or self.row_group_bytes)


def checked(
    target: str,
    *,
    partition_by: Sequence[str],
    compression: str | None,
    roll_bytes: int | None,
    row_group_bytes: int,
    required: Sequence[str],
    format: str = "parquet",  # noqa: A002 - the word that Spark uses
    roll_age: str | None = None,
    header: bool = False,
    options: Mapping[str, str] | None = None,
) -> Settings:
    """What a user gave, as settings. What has no default here every sink of files has."""
    spec = known_format(format)
    if header and format != "csv":
        raise ConfigError(f"only csv files have a header, found header=True with format={format!r}: leave it out")
    return Settings(
        target=target,
        format=format,
        partition_by=names("partition_by", partition_by),
        compression=known_compression(spec, compression),
        roll_bytes=None if roll_bytes is None else positive_bytes("roll_bytes", roll_bytes),
        roll_age_s=None if roll_age is None else age_s("roll_age", roll_age),
        row_group_bytes=positive_bytes("row_group_bytes", row_group_bytes),
        required=names("required", required),
        header=header,
        options=format_options(spec, options or {}),
    )


def posix_path(path: str | Path) -> Path:
    """An absolute path: a relative one would mean another folder on every executor."""
    text = str(path)
    parts = urlsplit(text)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(
                f"{text!r} names the host {parts.netloc!r}: needed file:///PATH, on a mounted file system"
            )
        return Path(unquote(parts.path)).absolute()
    if parts.scheme and "://" in text:
        raise ConfigError(
            f"files are published by renaming on a local or mounted file system, found {text!r}: give a path, or use "
            f"the sink for {parts.scheme}"
        )
    if not text:
        raise ConfigError("the path of a file sink is empty: give the folder that rows are to be published in")
    return Path(text).absolute()


def known_format(name: str) -> Format:
    if name not in FORMATS:
        raise ConfigError(f"unknown file format {name!r}: needed one of {', '.join(sorted(FORMATS))}")
    return FORMATS[name]


def known_compression(spec: Format, name: str | None) -> str:
    """None asks for the format's default, "none" for no compression."""
    chosen = spec.default if name is None else name
    if chosen not in spec.compressions:
        raise ConfigError(
            f"{spec.name} files cannot be compressed with {chosen!r}: needed one of {', '.join(spec.compressions)}"
        )
    return chosen


def names(setting: str, value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(name, str) and name for name in value):
        raise ConfigError(f"{setting} needs a list of column names such as ['day'], found {value!r}")
    if len(set(value)) < len(value):
        raise ConfigError(f"{setting} names a column twice: {', '.join(value)}")
    return tuple(value)


def positive_bytes(setting: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ConfigError(f"{setting} needs a number of bytes above 0, such as {128 << 20}, found {value!r}")
    return value


def age_s(setting: str, value: str) -> float:
    seconds = duration_s(value)
    if seconds <= 0:
        raise ConfigError(f"{setting} needs a duration above zero such as '5m', found {value!r}")
    return seconds


def format_options(spec: Format, options: Mapping[str, str]) -> Mapping[str, str]:
    """Options for Spark's to_json and to_csv. Spark ignores a name that it does not know; here it is an error."""
    unknown = sorted(set(options) - spec.options)
    if unknown:
        raise ConfigError(
            f"{spec.name} files have no option {', '.join(unknown)}: "
            + (f"needed one of {', '.join(sorted(spec.options))}" if spec.options else "they take none")
        )
    return {name: str(value) for name, value in options.items()}
