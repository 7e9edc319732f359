"""``tallystick init`` writes a job that is sound; `tests/spark/test_cli_run.py` runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_runner import Tally


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


def test_it_writes_a_job_that_can_be_explained(tally: Tally, tmp_path: Path) -> None:
    ran = tally("init", tmp_path / "new" / "job")
    assert ran.status == 0
    assert "tallystick run app_pv.py --available-now" in ran.out
    assert sorted(path.name for path in (tmp_path / "new" / "job").iterdir()) == ["README.md", "app_pv.py"]
    assert tally("explain", tmp_path / "new" / "job" / "app_pv.py", "--json").json["guarantee"] == "exactly-once"


def test_this_folder_is_the_default(tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tally("init").status == 0
    assert (tmp_path / "app_pv.py").exists()


@pytest.mark.parametrize("name", ["app_pv.py", "README.md"])
def test_it_overwrites_nothing(tally: Tally, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    ran = tally("init", tmp_path)
    assert ran.status == 1
    assert name in ran.err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_made(tally: Tally, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = tally("init", tmp_path / "file" / "below")
    assert ran.status == 1
    assert "cannot write" in ran.err
