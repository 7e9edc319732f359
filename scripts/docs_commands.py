"""The command line reference, from the declarations of the commands."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import typer
from docs_tables import code, table
from typer.models import ArgumentInfo, OptionInfo

from tallystick.cli import app

Declaration: TypeAlias = tuple[inspect.Parameter, Any, ArgumentInfo | OptionInfo]
"""A parameter, its type, and what typer is told about it."""


@dataclass(frozen=True)
class Command:
    """One command as it is typed, with the function behind it."""

    name: str
    call: Callable[..., Any]
    epilog: str

    @property
    def parameters(self) -> list[Declaration]:
        """Arguments first, then options."""
        hints = typing.get_type_hints(self.call, include_extras=True)
        found = []
        for name, parameter in inspect.signature(self.call).parameters.items():
            kind, declared = typing.get_args(hints[name])[:2]
            found.append((parameter, kind, declared))
        return sorted(found, key=lambda each: isinstance(each[2], OptionInfo))


def commands(group: typer.Typer = app, prefix: str = "tallystick") -> Iterator[Command]:
    """Every command, also those of groups, in the order in which they were declared."""
    for info in group.registered_commands:
        if info.callback is not None:
            name = info.name or info.callback.__name__.replace("_", "-")
            yield Command(f"{prefix} {name}", info.callback, info.epilog or "")
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            yield from commands(inner.typer_instance, f"{prefix} {inner.name}")


def command_line(argument: str, now: str) -> str:
    return "\n\n".join(_section(command) for command in commands())


def option_names(parameter: inspect.Parameter, kind: Any, declared: ArgumentInfo | OptionInfo) -> list[str]:
    """How it is typed: ``--json``, or for an argument its name in capitals."""
    if isinstance(declared, ArgumentInfo):
        name = declared.metavar or parameter.name.upper()
        return [name[1:-1] if name.startswith("[") else name]
    # inside Annotated the first name stands where a default would be
    names = [str(name) for name in (declared.default, *(declared.param_decls or ())) if str(name).startswith("-")]
    return names or [f"--{parameter.name.replace('_', '-')}"]


def _section(command: Command) -> str:
    parts = [f"## {command.name}", _plain(inspect.getdoc(command.call) or ""), f"```text\n{_usage(command)}\n```"]
    if command.parameters:
        parts.append(table(("argument or option", "default", "meaning"), map(_row, command.parameters)))
    return "\n\n".join([*parts, *_examples(command)])


def _row(declaration: Declaration) -> tuple[str, str, str]:
    parameter, _, declared = declaration
    return ", ".join(map(code, _shown(*declaration))), _default(parameter), _plain(declared.help or "")


def _usage(command: Command) -> str:
    arguments = [
        f"[{name}]" if parameter.default is not parameter.empty else name
        for parameter, kind, declared in command.parameters
        if isinstance(declared, ArgumentInfo)
        for name in option_names(parameter, kind, declared)
    ]
    return " ".join([command.name, *arguments, "[OPTIONS]"])


def _shown(parameter: inspect.Parameter, kind: Any, declared: ArgumentInfo | OptionInfo) -> list[str]:
    names = option_names(parameter, kind, declared)
    if isinstance(declared, ArgumentInfo) or _is_flag(kind):
        return names
    return [f"{name} {declared.metavar or parameter.name.upper()}" for name in names]


def _is_flag(kind: Any) -> bool:
    return kind in (bool, bool | None)


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return "required"
    return "–" if parameter.default in (None, False) else code(str(parameter.default))


def _examples(command: Command) -> list[str]:
    """``Examples: one · … two``, as a block with a line for each; dots stand for what comes before the last word."""
    listed = re.sub(r"^Examples?: ", "", command.epilog).split(" · ")
    lines = [re.sub(r"^… ", f"{command.name.rpartition(' ')[0]} ", line) for line in listed]
    return ["\n".join(["```sh", *lines, "```"])] if command.epilog else []


def _plain(text: str) -> str:
    """Without the markup that is for terminals."""
    bold = re.sub(r"\[bold\](.*?)\[/\]", r"**\1**", text)
    return bold.replace("\\[", "[").replace("``", "`").strip()
