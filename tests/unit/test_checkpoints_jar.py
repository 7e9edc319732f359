"""The jar in the package is what its source beside it says."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

import tallystick as ts
from tallystick.jvm.checkpoints import CLASS, JAR, SOURCE

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import build_checkpoints_jar


def test_it_was_built_from_this_source() -> None:
    said = build_checkpoints_jar.said(JAR)
    assert said["Source-SHA-256"] == build_checkpoints_jar.digest(SOURCE), "python scripts/build_checkpoints_jar.py"


@pytest.mark.slow
def test_built_again_it_is_the_same(tmp_path: Path) -> None:
    compiler, noted = build_checkpoints_jar.compiler(), build_checkpoints_jar.said(JAR)["Build-Javac"]
    if compiler is None or compiler.split(".")[0] != noted.split(".")[0]:
        pytest.skip(f"it was built with javac {noted}, here is {compiler or 'none'}")
    again = tmp_path / "again.jar"
    build_checkpoints_jar.build(again)
    assert content(again) == content(JAR)


def content(jar: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(jar) as packed:
        return {name: packed.read(name) for name in packed.namelist() if name.endswith(".class")}


def test_it_goes_to_spark_with_hadoops_client() -> None:
    jars = ts.s3_jars().split(",")
    assert str(JAR) in jars
    assert any("hadoop-aws-3.5.0" in jar for jar in jars)
    assert not any("bundle" in jar for jar in jars), "not Amazon's whole SDK"
    assert f"{CLASS.replace('.', '/')}.class" in content(JAR)
    job = ts.Job("x", source=ts.sources.Collection([{"id": 1}]), sink=ts.sinks.Memory("x"), checkpoint="s3://b/x")
    assert job.jvm_parts == ("spark-s3",)
