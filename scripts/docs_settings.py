"""Settings, methods and descriptions of public classes and functions, from their signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from docs_tables import code, table, with_meanings


def settings(argument: str, now: str) -> str:
    """The parameters of a class or function, as a table."""
    subject = find(argument)
    known = {code(name): text for name, text in described(subject).items()}
    return with_meanings(("setting", "type", "default", "meaning"), _rows(subject), now, known)


def about(argument: str, now: str) -> str:
    """The docstring of a class or function, without what `settings` shows."""
    return as_markdown(_ALIGNED.sub("", inspect.cleandoc(find(argument).__doc__ or "")))


def methods(argument: str, now: str) -> str:
    """The public methods that a class defines itself, in the order of its file."""
    subject = find(argument)
    own = [(name, value) for name, value in vars(subject).items() if callable(value) and not name.startswith("_")]
    return table(("method", "what it does"), ((code(call(name, value)), _first(value)) for name, value in own))


def find(dotted: str) -> Any:
    """What a dotted name stands for: ``tallystick.sinks.Files``."""
    module, _, name = dotted.rpartition(".")
    return getattr(import_module(module), name)


def parameters(subject: Callable[..., Any]) -> list[inspect.Parameter]:
    return [each for each in inspect.signature(subject).parameters.values() if each.name != "self"]


def call(name: str, value: Callable[..., Any]) -> str:
    shown = (f"**{each.name}" if each.kind is each.VAR_KEYWORD else each.name for each in parameters(value))
    return f"{name}({', '.join(shown)})"


def described(subject: Any) -> dict[str, str]:
    """Meanings from a docstring that lists its settings in two columns."""
    match = _ALIGNED.search(inspect.cleandoc(subject.__doc__ or ""))
    entries = re.split(r"\n(?=\w)", match[0].strip()) if match else []
    pairs = (entry.split(None, 1) for entry in entries)
    return {name: " ".join(as_markdown(text).split()) for name, text in pairs}


def as_markdown(text: str) -> str:
    """Our docstrings are Markdown but for double backticks."""
    return text.replace("``", "`").strip()


_ALIGNED = re.compile(r"^\w+ {2,}\S.*\n(?:(?:\w+ {2,}| {8,})\S.*(?:\n|\Z))+", re.MULTILINE)
"""Lines of a name, two spaces or more and a text, which goes on in indented lines."""


def _rows(subject: Callable[..., Any]) -> Iterator[tuple[str, str, str]]:
    for parameter in parameters(subject):
        kind = "" if parameter.annotation is parameter.empty else str(parameter.annotation)
        yield code(parameter.name), code(kind), _default(subject, parameter)


def _default(subject: Any, parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return "required"
    if dataclasses.is_dataclass(subject):
        declared = {field.name: field for field in dataclasses.fields(subject)}[parameter.name]
        if declared.default_factory is not dataclasses.MISSING:
            return code(repr(declared.default_factory()))
    return code(repr(parameter.default))


def _first(value: Callable[..., Any]) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(as_markdown(inspect.getdoc(value) or "").split("\n\n")[0].split())
