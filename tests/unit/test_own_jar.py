"""The jar in the package is what its sources beside it say."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

import tallystick as ts
from tallystick.jvm.classes import JAR, LOCAL_CLASS, S3_CLASS, SLICES_CLASS, SOURCES
from tallystick.spark import parts
from tallystick.spark.parts import jar_of_this_machine
from tallystick.spark.session import EXTENSIONS, JARS, settings_for

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import build_jar


def test_it_was_built_from_these_sources() -> None:
    said = build_jar.said(JAR)
    assert said["Source-SHA-256"] == build_jar.digest(SOURCES), "python scripts/build_jar.py"


@pytest.mark.slow
def test_built_again_it_is_the_same(tmp_path: Path) -> None:
    compiler, noted = build_jar.compiler(), build_jar.said(JAR)["Build-Javac"]
    if compiler is None or compiler.split(".")[0] != noted.split(".")[0]:
        pytest.skip(f"it was built with javac {noted}, here is {compiler or 'none'}")
    again = tmp_path / "again.jar"
    build_jar.build(again)
    assert content(again) == content(JAR)


def content(jar: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(jar) as packed:
        return {name: packed.read(name) for name in packed.namelist() if name.endswith(".class")}


def test_a_session_on_one_machine_has_it_once() -> None:
    assert settings_for("local[2]", {}, False, True)[JARS] == jar_of_this_machine()
    with_s3 = settings_for("local[2]", {}, False, True, ["spark-s3"])[JARS].split(",")
    assert [jar for jar in with_s3 if JAR.name in jar] == [str(JAR)]
    assert settings_for("local[2]", {JARS: "/mine/tallystick-jvm.jar"}, False, True)[JARS].count(JAR.name) == 1
    assert JARS not in settings_for("spark://master:7077", {}, False, True)


def test_our_rule_for_the_planner_stands_behind_those_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert settings_for("local[2]", {}, False, True)[EXTENSIONS] == SLICES_CLASS
    assert settings_for("local[2]", {EXTENSIONS: "a.B,c.D"}, False, True)[EXTENSIONS] == f"a.B,c.D,{SLICES_CLASS}"
    assert EXTENSIONS not in settings_for("spark://master:7077", {}, False, True), "the jar is not there"
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert EXTENSIONS not in settings_for("local[2]", {}, False, True), "what is set there would be lost"
    assert settings_for("local[2]", {EXTENSIONS: "a.B"}, False, True)[EXTENSIONS] == f"a.B,{SLICES_CLASS}"


def test_a_path_that_no_uri_has_goes_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would take ``local:/a%20b`` apart, and put it together without the escape."""
    for path, named in (("/a/b.jar", "local:/a/b.jar"), ("/a b/c.jar", "/a b/c.jar"), ("/a%20b.jar", "/a%20b.jar")):
        monkeypatch.setattr(parts, "JAR", Path(path))
        assert jar_of_this_machine() == named


def test_it_goes_to_spark_with_hadoops_client() -> None:
    jars = ts.s3_jars().split(",")
    assert str(JAR) in jars
    assert any("hadoop-aws-3.5.0" in jar for jar in jars)
    assert not any("bundle" in jar for jar in jars), "not Amazon's whole SDK"
    for name in (S3_CLASS, LOCAL_CLASS):
        assert f"{name.replace('.', '/')}.class" in content(JAR)
    job = ts.Job("x", source=ts.sources.Collection([{"id": 1}]), sink=ts.sinks.Memory("x"), checkpoint="s3://b/x")
    assert job.jvm_parts == ("spark-s3",)
