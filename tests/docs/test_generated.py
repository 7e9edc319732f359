"""The generated parts are up to date, and whatever the package offers is documented."""

from __future__ import annotations

import inspect
import re
from enum import Enum
from pathlib import Path
from types import ModuleType

import pytest
from pages import (
    DOCS,
    PAGES,
    ROOT,
    between,
    docs_commands,
    docs_facts,
    docs_settings,
    docs_tables,
    gather_evidence,
    generate_docs,
    named,
)

import tallystick
from tallystick import errors, evidence, killpoints, sinks, sources, testing
from tallystick.cli.guarantees import all_facts

REFERENCE = "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))
VALUES = {"JobContext", "OpenTransaction", "Refusal", "SliceContext"}
"""Exported for authors of sinks; nobody but the engine makes them, so their fields are no settings."""


@pytest.mark.parametrize("page", generate_docs.pages(), ids=named)
def test_generated_parts_are_up_to_date(page: Path) -> None:
    text = page.read_text()
    assert generate_docs.filled(text) == text, "run: make docs"


def test_all_evidence_can_be_gathered_again() -> None:
    known = gather_evidence.commands()
    for name, campaign in evidence.kept().items():
        assert campaign["command"] == known.get(name), f"run: python scripts/gather_evidence.py {name}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_nobody_forgot_to_fill_in_a_meaning(page: Path) -> None:
    assert docs_tables.MISSING not in page.read_text()


def test_meanings_are_kept_and_facts_are_not() -> None:
    """A new parameter without a meaning shows, a changed default does not survive, a vanished setting goes."""
    page = "| `sink` | `str` | `7` | by hand \\| kept |\n| `gone` | `int` | required | old |"
    made = docs_settings.settings("tallystick.Output", page)
    assert "| `sink` | `Sink` | required | by hand \\| kept |" in made
    assert f"| `where` | `str \\| None` | `None` | {docs_tables.MISSING} |" in made
    assert "gone" not in made


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(SystemExit, match="unknown generated part 'nonsense'"):
        generate_docs.filled("<!-- generated: nonsense -->\n<!-- /generated -->")


@pytest.mark.parametrize("module", [tallystick, sinks, sources, testing], ids=lambda module: str(module.__name__))
def test_every_public_name_is_in_the_reference(module: ModuleType) -> None:
    missing = [name for name in module.__all__ if not re.search(rf"(`|^#.*)[^`\n]*\b{name}\b", REFERENCE, re.MULTILINE)]
    assert missing == []


def declared() -> list[str]:
    """The public classes and functions that take settings, by their dotted names."""
    found = []
    for module in (tallystick, sinks, sources):
        for name in module.__all__:
            value = getattr(module, name)
            is_setting = callable(value) and not inspect.isabstract(value) and name not in VALUES
            if is_setting and not (isinstance(value, type) and issubclass(value, Enum | Exception)):
                found.append(f"{module.__name__}.{name}")
    return found


@pytest.mark.parametrize("name", declared())
def test_every_setting_is_documented(name: str) -> None:
    if docs_settings.parameters(docs_settings.find(name)):
        assert f"<!-- generated: settings {name} -->" in REFERENCE
    assert f"<!-- generated: about {name} -->" in REFERENCE


def test_there_are_settings_to_check() -> None:
    assert {"tallystick.Job", "tallystick.write_stream", "tallystick.sinks.Files"} <= set(declared())


def test_every_variable_of_the_environment_is_documented() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    variables = set(re.findall(r"TALLYSTICK_[A-Z_]+", code))
    page = (DOCS / "reference" / "settings.md").read_text()
    assert variables >= {killpoints.ENVIRONMENT, killpoints.ONCE}
    assert {variable for variable in variables if f"| `{variable}` |" not in page} == set()


def test_every_error_is_documented() -> None:
    raised = {name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")}
    listed = {error.__name__ for error, _ in docs_facts.error_tree(errors.TallystickError)}
    page = (DOCS / "reference" / "errors.md").read_text()
    assert raised <= listed
    assert {name for name in listed if f"`{name}` |" not in page} == set()


def test_every_command_and_option_is_documented() -> None:
    page = (DOCS / "reference" / "command-line.md").read_text()
    commands = list(docs_commands.commands())
    assert {"tallystick run", "tallystick transactions resolve"} <= {command.name for command in commands}
    for command in commands:
        section = page.split(f"## {command.name}\n")[1].split("\n## ")[0]
        for declaration in command.parameters:
            for name in docs_commands.option_names(*declaration):
                assert f"`{name}" in section, f"{command.name} {name}"


def test_every_kill_point_is_documented() -> None:
    page = (DOCS / "reference" / "kill-points.md").read_text()
    matrix = between((ROOT / "README.md").read_text(), "kill-matrix")
    for point in killpoints.POINTS:
        assert f"| `{point}` |" in page
        assert f"`{point}`" in matrix


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "reference" / "guarantees.md"], ids=named)
def test_every_connector_is_in_the_guarantee_tables(page: Path) -> None:
    facts = all_facts()
    assert {entry["name"] for entry in facts["sinks"]} >= {"files", "memory", "stdout"}
    for entry in facts["sinks"] + facts["sources"]:
        assert f"| {entry['name']} | {entry['guarantee']} |" in page.read_text()
