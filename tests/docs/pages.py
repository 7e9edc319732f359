"""The pages of the documentation as tests see them: Markdown files, their code blocks, links and headings."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TOP = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = [*(ROOT / name for name in TOP), *sorted(DOCS.rglob("*.md")), ROOT / "examples" / "README.md"]

sys.path.insert(0, str(ROOT / "scripts"))
generate_docs = import_module("generate_docs")
docs_commands = import_module("docs_commands")
docs_facts = import_module("docs_facts")
docs_settings = import_module("docs_settings")
docs_tables = import_module("docs_tables")
gather_evidence = import_module("gather_evidence")

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_RUN = "<!-- run -->"


@dataclass(frozen=True)
class Block:
    """One fenced block. ``run`` says that the page marks it to be run; ``line`` is where its code begins."""

    page: Path
    language: str
    code: str
    line: int
    run: bool

    def __str__(self) -> str:
        return f"{named(self.page)}:{self.line}"


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            page,
            match["language"],
            match["code"],
            text.count("\n", 0, match.start("code")) + 1,
            text[: match.start()].rstrip().endswith(_RUN),
        )
        for match in _FENCE.finditer(text)
    ]


def python_to_run(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python" and block.run]


def between(text: str, name: str) -> str:
    """What stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``."""
    return text.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]


def without_code(text: str) -> str:
    return _FENCE.sub("", text)


def links(page: Path) -> Iterator[str]:
    """The targets of inline links, without those that leave this repository."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(page: Path) -> set[str]:
    """The names under which a page's headings can be linked to."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def run(page: Path, which: slice = slice(None), **given: object) -> ModuleType:
    """Run the marked Python blocks of a page, or some of them, in order, as one module; returns it.

    Line numbers in tracebacks are those of the page. Workers cannot import the module, so it is pickled by value, as
    ``tallystick run`` does with a job's file.
    """
    module = ModuleType(re.sub(r"\W", "_", f"docs_{named(page)}"))
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    vars(module).update(given)
    for block in python_to_run(page)[which]:
        exec(compile("\n" * (block.line - 1) + block.code, named(page), "exec"), vars(module))
    return module
