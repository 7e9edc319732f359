"""What is public is listed, sorted and importable; and importing the package costs a worker nothing."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import version

import pytest

import tallystick

PACKAGES = ("sinks", "sources", "protocol", "planner", "journal", "prover", "testing", "servers")
LISTED = ("tallystick", *(f"tallystick.{package}" for package in PACKAGES))


def fresh(program: str) -> list[str]:
    """Run in a process that has imported nothing yet; what it prints, line by line."""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.parametrize("name", LISTED)
def test_all_is_sorted_and_complete(name: str) -> None:
    """Sorted as ruff sorts it: constants, then classes, then functions."""
    module = importlib.import_module(name)
    listed = module.__all__

    def order(entry: str) -> tuple[int, str]:
        return (0 if entry.isupper() else 1 if entry[0].isupper() else 2, entry)

    assert listed == sorted(set(listed), key=order)
    assert all(hasattr(module, entry) for entry in listed)


def test_every_public_name_has_a_home() -> None:
    assert sorted(tallystick.__all__) == sorted(tallystick._HOMES)
    for name, home in tallystick._HOMES.items():
        module = importlib.import_module(home)
        assert getattr(tallystick, name) is (module if name in ("sinks", "sources", "state") else getattr(module, name))


@pytest.mark.parametrize("name", tallystick.__all__)
def test_every_public_name_says_what_it_is(name: str) -> None:
    assert getattr(tallystick, name).__doc__


def test_star_imports_what_is_listed() -> None:
    printed = fresh("from tallystick import *; print(*sorted(name for name in dir() if name[0] != '_'), sep='\\n')")
    assert printed == sorted(tallystick.__all__)


def test_importing_the_package_imports_neither_spark_nor_arrow() -> None:
    heavy = "pyspark", "pyarrow", "numpy", "pandas", "py4j", "typer", "rich"
    printed = fresh(f"import tallystick, sys; print(*(name for name in {heavy} if name in sys.modules), sep='\\n')")
    assert printed in ([], [""])


@pytest.mark.parametrize("name", ["Checkpoint", "FixedDelay", "Mode", "NoRestart", "Outcome", "TallystickError"])
def test_values_and_errors_need_no_spark(name: str) -> None:
    printed = fresh(f"import tallystick as ts, sys; ts.{name}; print('pyspark' in sys.modules)")
    assert printed == ["False"]


def test_the_protocol_and_the_journal_need_no_spark() -> None:
    program = "import tallystick.protocol, tallystick.journal.posix, tallystick.journal.stores, tallystick.planner, sys"
    assert fresh(f"{program}; print('pyspark' in sys.modules, 'pyarrow' in sys.modules)") == ["False False"]


def test_a_name_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'write_steam': it exports .*write_stream"):
        _ = tallystick.write_steam


def test_names_can_be_completed() -> None:
    """In a notebook, before anything was used."""
    assert "True" in fresh("import tallystick; print(set(tallystick.__all__) <= set(dir(tallystick)))")


def test_the_version_is_that_of_the_package() -> None:
    assert tallystick.__version__ == version("tallystick")
