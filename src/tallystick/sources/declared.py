"""What Spark is told about a Python source: a name, columns, and who reads. One class per declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType


class DeclaredDataSource(DataSource):
    """`declare` makes the subclass that carries what the reader needs."""

    registered: ClassVar[str]
    columns: ClassVar[StructType]
    make_reader: ClassVar[Callable[[], DataSourceStreamReader]]

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._planned = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Spark pickles the data source into every task, where only its name is asked for: leave the rest behind."""
        return (_NameOnly, (self.registered,)) if self._planned else super().__reduce_ex__(protocol)

    @classmethod
    def name(cls) -> str:
        return cls.registered

    def schema(self) -> StructType:
        return self.columns

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        self._planned = True
        return type(self).make_reader()


class _NameOnly(DataSource):
    def __init__(self, registered: str) -> None:
        super().__init__({})
        self._registered = registered

    def name(self) -> str:  # type: ignore[override]  # an instance knows it, the class does not
        return self._registered


def declare(
    registered: str, columns: StructType, make_reader: Callable[[], DataSourceStreamReader]
) -> type[DeclaredDataSource]:
    """A data source class of its own. It has no module-level name, so that it is pickled with what it carries."""
    carried = {"registered": registered, "columns": columns, "make_reader": staticmethod(make_reader)}
    return type("DeclaredSource", (DeclaredDataSource,), carried)
