"""Which archive of classes is used, and which one makes room for others. That a JVM takes it is seen in every demo."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tallystick.spark import faststart

pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="an archive is that of a Java: none is here")


def archive(folder: Path, name: str, age_s: int, size: int = 10) -> Path:
    made = folder / f"spark-{name}-{size}.jsa"
    made.write_bytes(bytes(size))
    os.utime(made, (made.stat().st_mtime - age_s,) * 2)
    return made


def ours() -> str:
    java = faststart._java()
    assert java is not None
    return faststart._key(java)


def test_one_that_is_looked_for_every_time_outlives_those_of_others(tmp_path: Path) -> None:
    kept = archive(tmp_path, ours(), age_s=1000)
    others = [archive(tmp_path, f"other{number}", age_s=100 + number) for number in range(faststart.ARCHIVES_KEPT)]
    assert faststart.build_archive(tmp_path) == kept
    faststart._prune(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([kept, *others[:-1]])


def test_one_that_was_cut_off_is_not_used(tmp_path: Path) -> None:
    whole = archive(tmp_path, ours(), age_s=0)
    assert faststart.archive_path(tmp_path) == whole
    assert f"-XX:SharedArchiveFile={whole}" in faststart.jvm_options(tmp_path)
    whole.write_bytes(b"torn")
    assert faststart.archive_path(tmp_path) is None
    assert faststart.jvm_options(tmp_path) == faststart.LIGHT
