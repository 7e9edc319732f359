"""``tallystick init``: a starter job that runs."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from tallystick.cli.console import out
from tallystick.errors import ConfigError

EXAMPLES = "Examples: tallystick init · tallystick init my-first-job"
STARTER = ("app_pv.py", "README.md")


def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to; made if it is not there.")] = Path(),
) -> None:
    """Write a starter job that runs at once: page views counted per app, into files. Overwrites nothing."""
    taken = [str(folder / name) for name in STARTER if (folder / name).exists()]
    if taken:
        raise ConfigError(
            f"{' and '.join(taken)} exist{'s' if len(taken) == 1 else ''}: nothing was written. choose another folder: "
            "tallystick init DIR"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in STARTER:
            with (folder / name).open("x") as file:
                file.write(files("tallystick.cli").joinpath(f"starter/{name}").read_text())
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}. choose another folder") from error
    console = out()
    console.print(f"wrote {' and '.join(str(folder / name) for name in STARTER)}. now type:", soft_wrap=True)
    if folder != Path():
        console.print(f"  cd {folder}", soft_wrap=True)
    console.print("  tallystick run app_pv.py --available-now")
