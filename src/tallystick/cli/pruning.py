"""Put old checkpoints away as a running job does: Spark's logs of settled epochs go, audit lines stay."""

from __future__ import annotations

from tallystick.cli.opened import Opened
from tallystick.errors import CheckpointInUseError
from tallystick.records import Json


def prune_checkpoint(opened: Opened, keep: int) -> Json:
    """Remove Spark's logs of all but the newest ``keep`` finished epochs. `CheckpointInUseError` if a driver lives."""
    from tallystick.journal import roll_up
    from tallystick.journal.stores import open_store

    if not opened.journal.store.try_lock():
        raise CheckpointInUseError(
            f"a living driver holds {opened.location} and prunes it by itself, by Checkpoint(retention=…): stop it "
            "first"
        )
    try:
        while roll_up(opened.journal, settled=opened.finished):
            pass
        logs = open_store(opened.location, opened.spark)
        epochs = {log: [int(name) for name in logs.list(log) if name.isdigit()] for log in ("offsets", "commits")}
        oldest_kept = opened.finished - keep + 1
        old = {log: [epoch for epoch in found if epoch < oldest_kept] for log, found in epochs.items()}
        for log in ("commits", "offsets"):  # an epoch without its offsets counts as never begun, so those go last
            for epoch in sorted(old[log]):
                logs.delete(f"{log}/{epoch}")
                opened.delete_checksum(log, epoch)
    finally:
        opened.journal.store.unlock()
    return {
        "checkpoint": opened.location,
        "epochs": len(set(old["offsets"]) | set(old["commits"])),
        "files": sum(map(len, old.values())),
        "kept": len(set(epochs["commits"]) - set(old["commits"])),
    }
