"""Delta tables, by the table's own log: what its newest version has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tallystick.prover.place import Place
from tallystick.prover.readers.base import Item, Reader, row_text
from tallystick.prover.readers.files import moved
from tallystick.sinks.delta import Delta
from tallystick.sinks.delta.library import newest, told


class DeltaReader(Reader):
    kind = "delta"
    on_disk = True

    def __init__(self, sink: Delta, place: Place) -> None:
        super().__init__(sink, place)
        self._version = -1
        self._rows: tuple[Item, ...] = ()

    @classmethod
    def redirect(cls, sink: Delta, name: str, place: Place) -> Delta:
        folder = place.output(name)
        made: Delta = moved(sink, str(folder), folder, sink.files)
        return made

    def read(self) -> Mapping[str, Sequence[Item]]:
        with told(str(self.sink.path), "read"):
            table = newest(str(self.sink.path))
            if table is not None and table.version() != self._version:
                rows = table.to_pyarrow_table().to_pylist()
                self._rows, self._version = tuple(Item(row_text(row)) for row in rows), table.version()
        return {"table": self._rows}
