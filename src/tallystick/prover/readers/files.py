"""Folders: every file that is there is committed, and whole. Read this reader first."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, ClassVar

from tallystick.errors import SinkError
from tallystick.prover.place import Place
from tallystick.prover.readers.base import Item, Reader
from tallystick.prover.readers.file_rows import is_visible, items_of
from tallystick.sinks.files import Files
from tallystick.sinks.files.folder import STAGING
from tallystick.sinks.filesystem import FileSystem
from tallystick.sinks.staging import Staging


class FolderReader(Reader):
    """What the readers of folders share, on any file system."""

    def __init__(self, sink: Any, place: Place) -> None:
        super().__init__(sink, place)
        self._known: dict[str, tuple[Item, ...]] = {}

    def read(self) -> Mapping[str, Sequence[Item]]:
        """A file never changes once it is there, so each is opened once."""
        found = {}
        try:
            for path in self._visible(self.sink.path):
                name = str(path.relative_to(self.sink.path))
                if name not in self._known:
                    try:
                        self._known[name] = items_of(name, self.sink.files.read(path), self.sink.settings)
                    except FileNotFoundError:  # gone since it was listed, and the next read says so
                        continue
                found[name] = self._known[name]
        except OSError as failure:
            raise SinkError(f"{self.sink.target} cannot be read: {failure}") from failure
        return found

    def _visible(self, folder: PurePath) -> Iterator[PurePath]:
        for entry in self.sink.files.list(folder):
            name = str(entry.relative_to(self.sink.path))
            if not is_visible(name):
                continue
            if name not in self._known and self.sink.files.is_dir(entry):
                yield from self._visible(entry)
            else:
                yield entry


def moved(sink: Any, target: str, path: PurePath, files: FileSystem[Any]) -> Any:
    """The same sink, but in another folder."""
    made = copy.copy(sink)
    made.settings = replace(sink.settings, target=target)
    made.path = path
    made.staging = Staging(path / STAGING, files)
    return made


class FilesReader(FolderReader):
    kind: ClassVar[str] = "files"
    on_disk = True

    @classmethod
    def redirect(cls, sink: Files, name: str, place: Place) -> Files:
        folder: Path = place.output(name)
        made: Files = moved(sink, str(folder), folder, sink.files)
        return made
