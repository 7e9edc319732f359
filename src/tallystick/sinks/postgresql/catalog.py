"""What the server knows of the target: one question, asked by the driver before the start and by every slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_QUESTION = """
SELECT c.relkind::text, c.relpersistence::text, current_setting('max_prepared_transactions')::int,
  (SELECT coalesce(json_agg(json_build_object('name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
     'optional', NOT a.attnotnull OR a.atthasdef OR a.attidentity <> '', 'generated', a.attgenerated <> ''
   ) ORDER BY a.attnum), '[]')
   FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  (SELECT coalesce(json_agg(json_build_object('primary', i.indisprimary,
     'plain', i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate
       AND NOT coalesce((to_jsonb(i)->>'indnullsnotdistinct')::bool, false),
     'columns', ARRAY(SELECT a.attname::text FROM pg_attribute a
       WHERE a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])))), '[]')
   FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique),
  EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'x'),
  c.relkind = 'p' OR c.relrowsecurity
    OR EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype IN ('f', 'x'))
    OR EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal)
    OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> '')
    OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)),
  ARRAY(SELECT DISTINCT a.attname::text FROM pg_index i JOIN pg_attribute a
    ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey::int2[]) WHERE i.indrelid = c.oid ORDER BY 1)
FROM pg_class c WHERE c.oid = to_regclass(%s)
"""


INDEXED_BYTES = 2000
"""What surely fits into an entry of any index; a B-tree takes some 2,700 bytes, after compression."""


@dataclass(frozen=True)
class Column:
    """``optional``: a row may do without it."""

    name: str
    type: str
    optional: bool
    generated: bool


@dataclass(frozen=True)
class Unique:
    """A unique index; ``plain`` ones can be named by their columns in ON CONFLICT."""

    columns: frozenset[str]
    primary: bool
    plain: bool


@dataclass(frozen=True)
class Target:
    """``excludes``: it has an exclusion constraint. ``checks_elsewhere``: some rows are refused for reasons that a copy
    of the table would not know. ``indexed``: columns in any index, which does not take values of every size.
    """

    kind: str
    persistence: str
    slots: int
    columns: tuple[Column, ...]
    uniques: tuple[Unique, ...]
    excludes: bool
    checks_elsewhere: bool
    indexed: tuple[str, ...] = ()

    @property
    def primary_key(self) -> list[str]:
        return sorted({name for index in self.uniques if index.primary for name in index.columns})

    @property
    def can_wait(self) -> bool:
        """Whether a row can wait for another one's transaction to end: where something must be unique."""
        return bool(self.uniques) or self.excludes

    def has_unique(self, key: Sequence[str]) -> bool:
        return any(index.plain and index.columns == frozenset(key) for index in self.uniques)

    def to_compare(self, mode: str, columns: Sequence[str]) -> list[list[str]]:
        """Append: the keys of the rows that can be compared with those in the target, without writing there."""
        keys = [index.columns for index in self.uniques if index.plain and index.columns <= set(columns)]
        return [sorted(key) for key in keys] if mode == "append" else []

    def must_rehearse(self, mode: str, key: Sequence[str], columns: Sequence[str], indexed_bytes: int) -> bool:
        """Whether only the target itself can tell that it will take the rows, whose largest texts in indexed columns
        have together at most ``indexed_bytes``.
        """
        compared = self.to_compare(mode, columns)
        known = [frozenset(key)] if mode == "upsert" else [frozenset(one) for one in compared]
        others = [one for one in self.uniques if one.columns not in known and one.columns & set(columns)]
        return mode == "changes" or self.checks_elsewhere or bool(others) or indexed_bytes > INDEXED_BYTES


def look(connection: Any, table: str) -> Target | None:
    """``table`` is quoted. None if there is no such table."""
    found = connection.execute(_QUESTION, [table]).fetchone()
    if found is None:
        return None
    kind, persistence, slots, columns, uniques, excludes, elsewhere, indexed = found
    return Target(
        kind,
        persistence,
        slots,
        tuple(Column(**one) for one in columns),
        tuple(Unique(frozenset(one["columns"]), one["primary"], one["plain"]) for one in uniques),
        excludes,
        elsewhere,
        tuple(indexed),
    )
