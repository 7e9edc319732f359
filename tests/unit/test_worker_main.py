"""What Spark's Python processes say when their connection is gone: nothing, unless it was somebody else's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tallystick.spark

MAIN = Path(tallystick.spark.__file__).with_name("worker_main.py")


def run(folder: Path, package: str, code: str) -> subprocess.CompletedProcess[str]:
    module = folder / "at" / package / "job.py"
    module.parent.mkdir(parents=True)
    module.write_text(code)
    command = [sys.executable, str(MAIN), "-m", f"at.{package}.job", "one", "two"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_a_module_runs_as_with_m(tmp_path: Path) -> None:
    code = (
        "import sys, os; print(__name__, sys.argv[1:], sys.path[0] in ('', os.getcwd()), os.path.basename(sys.argv[0]))"
    )
    assert run(tmp_path, "plain", code).stdout == "__main__ ['one', 'two'] True job.py\n"


@pytest.mark.parametrize(
    "code",
    [
        "raise BrokenPipeError(32, 'Broken pipe')",
        "import sys\ntry:\n    raise EOFError\nexcept EOFError:\n    raise BrokenPipeError(32, 'Broken pipe')",
        "import traceback\ntry:\n    raise ConnectionResetError\nexcept ConnectionError:\n    traceback.print_exc()",
    ],
)
def test_a_lost_connection_of_pyspark_is_no_news(tmp_path: Path, code: str) -> None:
    assert run(tmp_path, "pyspark", code).stderr == ""
    told = run(tmp_path, "mine", code).stderr
    assert "BrokenPipeError" in told or "ConnectionResetError" in told, "somebody else's code is heard"


def test_other_errors_are_told(tmp_path: Path) -> None:
    told = run(tmp_path, "pyspark", "raise ValueError('something else')")
    assert told.returncode == 1
    assert "ValueError: something else" in told.stderr
