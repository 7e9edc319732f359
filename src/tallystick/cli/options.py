"""Options that several commands share, declared once so that they read alike everywhere."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

HELP = {"help_option_names": ["--help", "-h"]}

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Debug: TypeAlias = Annotated[bool, typer.Option("--debug", help="On an error, show the whole traceback.")]
JobFile: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE[:NAME]", help="A Python file, and which of its jobs if it declares several.")
]
CheckpointPath: TypeAlias = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint location of a job: a path or URI.")
]
