"""``tallystick savepoint``: keep a consistent copy of a job's checkpoint, and go on from one."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.cli.console import counted, err, out, print_json
from tallystick.cli.options import HELP, AsJson, CheckpointPath, Debug
from tallystick.errors import CheckpointError
from tallystick.records import Json

if TYPE_CHECKING:
    from tallystick.cli.opened import Opened
    from tallystick.spark.changes import Change

CREATE_EXAMPLES = (
    "Examples: tallystick savepoint create checkpoints/pv savepoints/monday · "
    "… create checkpoints/pv s3://backups/pv/upgrade --stop"
)
RESTORE_EXAMPLES = (
    "Examples: tallystick savepoint restore savepoints/monday checkpoints/pv2 · "
    "… restore savepoints/monday checkpoints/copy --as pv-copy --job app_pv.py"
)
STOP_PATIENCE_S = 180.0
POLL_S = 0.2

app = typer.Typer(
    help="Consistent copies of a checkpoint: to go back to, or to go on from elsewhere.",
    no_args_is_help=True,
    context_settings=HELP,
)


@app.command("create", epilog=CREATE_EXAMPLES)
def create(
    checkpoint: CheckpointPath,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where to: a new folder, also on hdfs: or s3:.")],
    stop: Annotated[
        bool, typer.Option("--stop", help="First ask the running job to stop after its epoch, wherever it runs.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Copy what is needed to go on after the newest finished epoch. The job may run meanwhile.

    Every file is named in the savepoint with its SHA-256.
    """
    from tallystick.cli.opened import open_checkpoint
    from tallystick.spark.savepoint import create as copy

    opened = open_checkpoint(checkpoint)
    if stop:
        _stop(opened)
    manifest = copy(opened.location, folder, opened.spark)
    if as_json:
        print_json(_summary(manifest, folder))
        return
    out().print(
        f"savepoint [bold]{folder}[/] of job {manifest['job']} after epoch {manifest['epoch']}: "
        f"{counted(len(manifest['files']), 'file')}, {_bytes(manifest):,} bytes",
        soft_wrap=True,
    )


@app.command("restore", epilog=RESTORE_EXAMPLES)
def restore(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A savepoint.")],
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint to make: a new folder, for ts.Checkpoint.")
    ],
    name: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Give it to a job of another name.")] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="FILE[:NAME]", help="Check whether this job may go on from it.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Deal the state out to so many partitions (RocksDB only).")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make a checkpoint of a savepoint, after checking every file against its hash.

    What the original delivered after the savepoint is delivered again by a job that goes on from it.
    Exit status 1, and nothing is made, if the job of --job may not go on from it.
    """
    from tallystick.spark.savepoint import read_manifest
    from tallystick.spark.savepoint import restore as make

    found = _changes(read_manifest(folder), job)
    refused = [change for change in found if not change.allowed]
    if refused:
        raise CheckpointError(f"{refused[0].what}: {refused[0].why}. nothing was restored")
    manifest = make(folder, checkpoint, name)
    if partitions is not None:
        _repartition(checkpoint, partitions)
    if as_json:
        print_json({**_summary(manifest, checkpoint), "changes": [change.to_json() for change in found]})
        return
    for change in found:
        err().print(f"[yellow]{change.what}[/]: {change.why}", soft_wrap=True)
    out().print(
        f"checkpoint [bold]{checkpoint}[/] for job {name or manifest['job']}: goes on after epoch {manifest['epoch']}. "
        "what the original delivered after that is delivered again",
        soft_wrap=True,
    )


def _changes(manifest: Json, job: str | None) -> list[Change]:
    from tallystick.spark.changes import changes
    from tallystick.spark.jobfile import load_job

    if job is None:
        return []
    declared = load_job(job)
    return changes(manifest, list(declared.inputs), {each.name: each.sink.target for each in declared.participants})


def _stop(opened: Opened) -> None:
    """Ask the leader through the journal, and wait until nobody holds the checkpoint and nobody beats any more.

    HDFS has no lock: there the beats alone tell, and they must have stood still for as long as a standby waits.
    """
    from tallystick.journal.lease import Leases
    from tallystick.journal.posix import PosixStore
    from tallystick.spark.leading import PATIENCE_S

    store = opened.journal.store
    leases = Leases(store)
    leases.request_stop(leases.term(), {"host": socket.gethostname(), "pid": os.getpid()})
    still_s = 0.0 if isinstance(store, PosixStore) else PATIENCE_S
    seen, since_s = leases.newest(), time.monotonic()
    deadline = time.monotonic() + STOP_PATIENCE_S
    while not store.try_lock() or time.monotonic() - since_s < still_s:
        if time.monotonic() > deadline:
            raise CheckpointError(
                f"the job on {opened.location} has not stopped in {STOP_PATIENCE_S:g} s: no savepoint was made. it "
                "stops when its epoch ends; try again then"
            )
        time.sleep(POLL_S)
        newest = leases.newest()
        if newest != seen:
            seen, since_s = newest, time.monotonic()
    store.unlock()


def _repartition(checkpoint: str, partitions: int) -> None:
    from tallystick.cli.opened import session_to_read
    from tallystick.spark.rescale import repartition

    repartition(session_to_read(checkpoint), checkpoint, partitions)


def _summary(manifest: Json, where: str) -> Json:
    told = {key: manifest[key] for key in ("job", "epoch", "created_at", "tallystick", "spark", "sources", "operators")}
    return {"location": where, **told, "files": len(manifest["files"]), "bytes": _bytes(manifest)}


def _bytes(manifest: Json) -> int:
    return sum(entry["bytes"] for entry in manifest["files"].values())
