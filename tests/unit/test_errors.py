"""The tree in the docstring is the tree of the classes, and every error survives its way from an executor."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import re

import pytest

import tallystick
from tallystick import errors
from tallystick.errors import TallystickError

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, BaseException)]
everyone = pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)


def drawn() -> dict[str, str]:
    """Child -> parent, as the docstring draws it."""
    tree: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ((?:│   |    )*(?:├── |└── )?)(\w+Error)\b", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        del above[depth:]
        if above:
            tree[match[2]] = above[-1]
        above.append(match[2])
    return tree


def test_the_drawn_tree_is_the_real_one() -> None:
    real = {kind.__name__: kind.__bases__[0].__name__ for kind in CLASSES if kind is not TallystickError}
    assert drawn() == real
    assert len(real) > 15, "the drawing was found"


def test_the_drawing_says_something_about_every_error() -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if re.search(r"── \w+Error", line)]
    assert len(lines) == len(CLASSES) - 1
    assert all(re.search(r"\w+Error\s+\w+,? \w+", line) for line in lines)


@everyone
def test_every_error_is_ours_and_has_one_parent(kind: type[TallystickError]) -> None:
    assert issubclass(kind, TallystickError)
    assert len(kind.__bases__) == 1
    assert inspect.getdoc(kind), "says when it is raised"


def test_no_other_module_has_errors_of_its_own() -> None:
    """But the command line: what it refuses to do never leaves the process of its user."""
    for module in pkgutil.walk_packages(tallystick.__path__, "tallystick."):
        if module.name != "tallystick.__main__" and ".starter." not in module.name:
            importlib.import_module(module.name)
    found: list[type[TallystickError]] = []
    below = [TallystickError]
    while below:
        kind = below.pop()
        found.append(kind)
        children = [child for child in kind.__subclasses__() if child.__module__.startswith("tallystick.")]
        below += [child for child in children if not child.__module__.startswith("tallystick.cli.")]
    assert set(found) == set(CLASSES)


@everyone
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_survives_pickling(kind: type[TallystickError], protocol: int) -> None:
    error = kind("epoch 3: the disk is full – 0 bytes", epoch=3, slices=[("files", 0)], message="a", kind="b", self=1)
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is kind
    assert str(back) == str(error)
    assert back.details == error.details


@everyone
def test_every_error_survives_copying(kind: type[TallystickError]) -> None:
    error = kind("text", file="a")
    assert (type(copy.copy(error)), str(copy.deepcopy(error)), copy.copy(error).details) == (
        kind,
        "text",
        {"file": "a"},
    )


def test_an_error_without_details_has_none() -> None:
    assert TallystickError("text").details == {}
    assert pickle.loads(pickle.dumps(TallystickError(""))).details == {}


def test_the_text_is_the_only_argument_without_a_name() -> None:
    with pytest.raises(TypeError):
        TallystickError("text", "more")  # type: ignore[call-arg]
