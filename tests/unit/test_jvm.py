"""JVM parts are fetched once, whole, by one process at a time; and a machine that cannot is told what to do."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tallystick.errors import SetupError
from tallystick.jvm import __main__ as ahead
from tallystick.jvm import cache_folder, find_java, resolve
from tallystick.jvm.resolver import IVY_FILE

TINY = """\
<ivy-module version="2.0">
  <info organisation="tallystick" module="tiny"/>
  <configurations><conf name="tiny"/></configurations>
  <dependencies>
    <dependency org="org.slf4j" name="slf4j-api" rev="{rev}" conf="tiny->master" transitive="false"/>
  </dependencies>
</ivy-module>
"""
NOWHERE = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1 -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=1"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "ivy.xml"
    path.write_text(TINY.format(rev="1.7.36"))
    return path


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A cache into which two threads have fetched the same parts at once; and the Ivy file."""
    folder = tmp_path_factory.mktemp("jvm")
    ivy_file, cache = folder / "ivy.xml", folder / "cache"
    ivy_file.write_text(TINY.format(rev="1.7.36"))
    try:
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda _: resolve("tiny", ivy_file=ivy_file, cache=cache), range(2))
    except SetupError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no JVM parts: {error}")
    assert first == second == [cache / "jvm" / "tiny" / "slf4j-api-1.7.36.jar"]
    return ivy_file, cache


@pytest.fixture
def without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("without_java")
def test_what_was_fetched_is_not_fetched_again(fetched: tuple[Path, Path]) -> None:
    """There is no java to start: a second call needs none."""
    ivy_file, cache = fetched
    (jar,) = resolve("tiny", ivy_file=ivy_file, cache=cache)
    assert jar.stat().st_size > 10_000
    assert sorted(path.name for path in (cache / "jvm").iterdir()) == ["ivy", "lock", "tiny"]


@pytest.mark.usefixtures("without_java")
@pytest.mark.parametrize("damage", ["another pin", "a missing jar", "a cut jar", "no marker", "a cut marker"])
def test_an_incomplete_folder_does_not_count(fetched: tuple[Path, Path], tmp_path: Path, damage: str) -> None:
    """It would be fetched again; without java that is an error, which shows that it was tried."""
    ivy_file, cache = fetched
    parts = tmp_path / "cache" / "jvm" / "tiny"
    parts.mkdir(parents=True)
    for path in (cache / "jvm" / "tiny").iterdir():
        (parts / path.name).write_bytes(path.read_bytes())
    assert resolve("tiny", ivy_file=ivy_file, cache=tmp_path / "cache")
    jar, marker = parts / "slf4j-api-1.7.36.jar", parts / "complete.json"
    if damage == "another pin":
        ivy_file = tmp_path / "ivy.xml"
        ivy_file.write_text(TINY.format(rev="1.7.35"))
    elif damage == "a missing jar":
        jar.unlink()
    elif damage == "a cut jar":
        jar.write_bytes(jar.read_bytes()[:100])
    elif damage == "no marker":
        marker.unlink()
    else:
        marker.write_text(marker.read_text()[:20])
    with pytest.raises(SetupError, match="no java found"):
        resolve("tiny", ivy_file=ivy_file, cache=tmp_path / "cache")


def test_no_network_says_what_to_do(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", NOWHERE)
    with pytest.raises(SetupError, match=r"'tiny' could not be fetched: .*(?s:.*)repo1.maven.org.*copy the folder"):
        resolve("tiny", ivy_file=tiny, cache=tmp_path / "cache")
    assert not (tmp_path / "cache" / "jvm" / "tiny").exists()


def test_a_cache_that_cannot_be_written_is_named(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match=r"file/jvm cannot be used: .* set TALLYSTICK_CACHE"):
        resolve("tiny", ivy_file=tiny, cache=tmp_path / "file")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("TALLYSTICK_CACHE", raising=False)
    assert cache_folder() == Path("/home/me/.cache/tallystick")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert cache_folder() == Path("/var/cache/me/tallystick")
    monkeypatch.setenv("TALLYSTICK_CACHE", "/big")
    assert cache_folder() == Path("/big")


def test_a_wrong_java_home_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match=f"JAVA_HOME is {tmp_path}"):
        find_java()


def test_every_part_is_pinned() -> None:
    tree = ElementTree.parse(IVY_FILE)
    confs = {conf.attrib["name"] for conf in tree.iter("conf")}
    parts = list(tree.iter("dependency"))
    assert confs == {part.attrib["conf"].partition("->")[0] for part in parts}
    for part in parts:
        assert part.attrib["rev"][0].isdigit(), part.attrib["name"]
        assert not any(sign in part.attrib["rev"] for sign in "+[("), part.attrib["name"]


def test_the_connector_is_that_of_the_installed_spark() -> None:
    import pyspark

    revisions = {part.attrib["name"]: part.attrib["rev"] for part in ElementTree.parse(IVY_FILE).iter("dependency")}
    assert revisions["spark-sql-kafka-0-10_2.13"] == pyspark.__version__


def test_parts_can_be_fetched_ahead(fetched: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    ivy_file, cache = fetched
    assert ahead.main([], ivy_file, cache) == 0
    assert capsys.readouterr().out == f"tiny: 1 jars, 0 MB, in {cache / 'jvm' / 'tiny'}\n"
    assert ahead.main(["tiny", "nonsense"], ivy_file, cache) == 2
    assert capsys.readouterr().err == "there is no part nonsense: needed one of tiny\n"


def test_ahead_means_everything_that_the_tests_need() -> None:
    assert set(ahead.parts()) >= {"kafka", "spark-kafka", "hdfs", "cassandra", "opensearch"}
