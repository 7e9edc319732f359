"""What the pages say is there: links, files, commands, names. Their Python compiles, and what is marked for it runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pages import (
    DOCS,
    PAGES,
    ROOT,
    Block,
    anchors,
    blocks,
    docs_commands,
    links,
    named,
    python_to_run,
    run,
    without_code,
)
from pyspark.sql import SparkSession

import tallystick as ts
from kafka_topics import make_topic, read_topic, wait_for_markers
from real_servers import Elsewhere
from tallystick.prover.workload import Numbered
from tallystick.servers import Kafka

HOW_TO = DOCS / "how-to"
TESTED_ELSEWHERE = {HOW_TO / "write-your-own-sink.md"}
WIDTH = 150
WRAPPED = [
    ROOT / "README.md",
    *(page for page in PAGES if page.is_relative_to(DOCS) and page.parent.name != "decisions"),
]
PYTHON = [block for page in PAGES for block in blocks(page) if block.language == "python"]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_page_can_be_reached_from_the_index() -> None:
    reached = {(DOCS / link).resolve() for link in links(DOCS / "README.md")}
    pages = {page for page in DOCS.rglob("*.md") if page.parent.name != "decisions"}
    assert pages - reached - {DOCS / "README.md"} == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_that_are_named_exist(page: Path) -> None:
    for path in re.findall(r"`((?:src|tests|docs|scripts|bench|examples)/[^`]*)`", page.read_text()):
        assert "NAME" in path or (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_names_of_the_package_exist(page: Path) -> None:
    for first, second in re.findall(r"\bts\.([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?", page.read_text()):
        assert first in ts.__all__, f"ts.{first}"
        assert not second or hasattr(getattr(ts, first), second), f"ts.{first}.{second}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    shells = [block.code for block in blocks(page) if block.language == "sh"]
    typed = re.findall(r"`([^`\n]+)`", without_code(text)) + [line for code in shells for line in code.splitlines()]
    for line in typed:
        if match := re.match(r"(?:[A-Z_]+=\S+ )*(tallystick [^#|]*)", line):
            check_command(match[1])
        if match := re.match(r"make ([a-z]+)", line):
            assert re.search(rf"^{match[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line


def check_command(typed: str) -> None:
    """The command exists, or the group of commands, and so do its options."""
    words = shlex.split(typed)
    commands = {command.name: command for command in docs_commands.commands()}
    command = commands.get(" ".join(words[:3])) or commands.get(" ".join(words[:2]))
    if command is None:
        groups = {name.rpartition(" ")[0] for name in commands}
        assert " ".join(words) in groups | {"tallystick --version"}, typed
        return
    known = {name for declared in command.parameters for name in docs_commands.option_names(*declared)}
    options = {part for option in known for part in option.split("/")} | {"--help"}
    assert {word for word in words if word.startswith("-")} <= options, typed


def test_a_command_or_option_that_does_not_exist_is_noticed() -> None:
    check_command("tallystick audit checkpoint --json")
    for wrong in ("tallystick polish", "tallystick audit checkpoint --nonsense", "tallystick transactions burn"):
        with pytest.raises(AssertionError):
            check_command(wrong)


@pytest.mark.parametrize("page", WRAPPED, ids=named)
def test_lines_are_wrapped(page: Path) -> None:
    prose = without_code(page.read_text()).splitlines()
    assert [line for line in prose if len(line) > WIDTH and not line.startswith("|")] == []


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.code, str(block), "exec")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pages are run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_page_that_is_marked_is_run() -> None:
    marked = {page for page in PAGES if python_to_run(page)}
    run_here = {ROOT / "README.md", HOW_TO / "several-sinks-in-one-epoch.md", HOW_TO / "keep-refused-rows.md"}
    run_here |= {HOW_TO / "choose-a-delivery-mode.md", HOW_TO / "read-the-output-with-other-tools.md"}
    run_here |= {HOW_TO / "prove-a-job.md"}
    assert marked == run_here | TESTED_ELSEWHERE


@pytest.mark.spark
def test_the_one_line_of_the_readme(spark: SparkSession, folder: Path) -> None:
    df = ts.sources.Collection([{"id": number} for number in range(30)], per_epoch=10).load(spark)
    out = folder / "out"
    query = run(ROOT / "README.md", slice(1), df=df, out=out, checkpoint=str(folder / "checkpoint")).query
    query.processAllAvailable()
    query.stop()
    assert ds.dataset(out).to_table().sort_by("id")["id"].to_pylist() == list(range(30))


@pytest.mark.spark
def test_the_line_of_the_readme_that_writes_to_kafka(
    spark: SparkSession, kafka: Kafka | Elsewhere, folder: Path
) -> None:
    rows = [{"key": f"k{number}", "value": str(number)} for number in range(30)]
    topic = make_topic(kafka.address)
    given = {"df": ts.sources.Collection(rows, per_epoch=10).load(spark), "servers": kafka.address, "topic": topic}
    query = run(ROOT / "README.md", slice(1, 2), checkpoint=str(folder / "checkpoint"), **given).query
    query.processAllAvailable()
    query.stop()
    wait_for_markers(kafka.address, "tallystick")
    found = [(record.key, record.value) for record in read_topic(kafka.address, topic)]
    assert sorted(found) == sorted((row["key"].encode(), row["value"].encode()) for row in rows)


@pytest.mark.spark
def test_several_sinks(spark: SparkSession, folder: Path) -> None:
    run(HOW_TO / "several-sinks-in-one-epoch.md", spark=spark)
    assert ds.dataset(folder / "all", partitioning="hive").count_rows() == 200
    lines = [line for path in (folder / "large").glob("*.json") for line in path.read_text().splitlines()]
    found = {row["id"]: row["amount"] for row in map(json.loads, lines)}
    assert len(lines) == len(found)
    assert found == {number: number / 10 for number in range(101, 200)}


@pytest.mark.spark
def test_refused_rows(spark: SparkSession, folder: Path) -> None:
    run(HOW_TO / "keep-refused-rows.md", spark=spark)
    assert ds.dataset(folder / "orders").count_rows() == 36


@pytest.mark.spark
def test_delivery_modes(spark: SparkSession, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(HOW_TO / "choose-a-delivery-mode.md", spark=spark)
    printed = capfd.readouterr().out.splitlines()
    assert printed[0] == "at-least-once"
    assert '{"id":0}' in printed
    assert any(line.startswith("… and ") for line in printed)


def test_what_a_job_file_tells_the_prover(folder: Path) -> None:
    page = run(HOW_TO / "prove-a-job.md")
    records = [Numbered(number, f"key_{number % 2}", number // 2) for number in range(4)]
    assert page.job.name == "clicks"
    assert page.prove_expected(records)[3] == {"user": "key_1", "page": "/p/3", "ms": 1}


@pytest.mark.spark
def test_other_tools_read_the_output(spark: SparkSession, folder: Path) -> None:
    """The page asserts by itself what each tool reads."""
    run(HOW_TO / "read-the-output-with-other-tools.md", spark=spark)
    assert list(folder.glob("views/app=app0/*.parquet"))
