"""Savepoints: a consistent, verified copy of a checkpoint at a settled epoch.

Why they are what they are: docs/decisions/0010-savepoints-are-verified-copies.md. Where they can be: `folders`.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from os import PathLike
from typing import TYPE_CHECKING

from tallystick.errors import CheckpointError, NewerCheckpointError
from tallystick.journal import Journal
from tallystick.journal.codec import decode, encode
from tallystick.journal.stores import open_store
from tallystick.records import Json
from tallystick.spark.folders import Folder, folder_at
from tallystick.spark.keyed import operators
from tallystick.spark.offsets import newest_epoch, parse_offsets
from tallystick.spark.tree import checkpoint_tree
from tallystick.spark.whole import MARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFEST = "savepoint.json"
TRIES = 5
_STATE_FILE = re.compile(r"(?P<folder>state/.+)/(?P<version>\d+)(?:_[^/]*)?\.(?P<kind>delta|changelog|snapshot|zip)")
_JOURNAL_FILE = re.compile(r"tallystick/(?:attempts|notes|resolutions|rules)/(?P<epoch>\d{12,})\..*json")
_WHOLE = ("delta", "changelog"), ("snapshot", "zip")

Place = str | PathLike[str] | Folder


def create(checkpoint: Place, target: Place, spark: SparkSession | None = None) -> Json:
    """Copy the checkpoint as of its newest settled epoch; returns the manifest. The job may run meanwhile.

    A checkpoint that is not on this machine is read with ``spark``.
    """
    source, place = folder_at(checkpoint), folder_at(target)
    _check_free(place)
    for _ in range(TRIES):
        partial = place.beside()
        try:
            manifest = _copy_epoch(source, partial, spark)
        except FileNotFoundError:  # Spark has just removed it as too old: begin anew with what is newest now
            partial.discard()
            continue
        except OSError as cause:
            partial.discard()
            raise CheckpointError(
                f"the savepoint {place} was not made: {cause.strerror or cause}. nothing was left there"
            ) from cause
        except BaseException:
            partial.discard()
            raise
        place.appear(partial)
        return manifest
    raise CheckpointError(
        f"{source} was cleaned up faster than it could be copied, {TRIES} times: raise Checkpoint(retention=…), or "
        "stop the job for the savepoint: --stop"
    )


def _copy_epoch(checkpoint: Folder, target: Folder, spark: SparkSession | None) -> Json:
    where = str(checkpoint)
    epoch = newest_epoch(open_store(where, spark), "commits")
    if epoch < 0:
        raise CheckpointError(f"{checkpoint} has no finished epoch yet: there is nothing to keep")
    tree = checkpoint_tree(where, spark)
    log = f"offsets/{epoch}"
    offsets = parse_offsets(checkpoint.read(log).decode(), f"{checkpoint}/{log}").offsets
    files = {path: target.copy(path, checkpoint) for path in needed(tree, epoch, offsets)}
    journal = Journal(open_store(f"{where}/tallystick", spark))
    owner = journal.identity()
    if owner is None:
        raise CheckpointError(f"{checkpoint} has no journal: needed the checkpoint of a job of ours")
    claims = journal.generations()
    claim = (journal.generation(claims[-1]) if claims else None) or {}
    manifest = {
        "job": owner.job,
        "job_id": owner.id,
        "epoch": epoch,
        "created_at": round(time.time(), 3),
        "tallystick": version("tallystick"),
        "spark": version("pyspark"),
        "sources": list(claim.get("sources", [])),
        "offsets": list(offsets),
        "sinks": dict(claim.get("sinks", {})),
        "operators": [
            {"operator": found.number, "name": found.name, "partitions": found.partitions}
            for found in operators(where, tree, epoch, spark)
        ],
        "files": files,
    }
    target.write(MANIFEST, iter([encode("savepoint", manifest)]))
    return manifest


def needed(tree: Iterable[str], epoch: int, offsets: Iterable[Json]) -> list[str]:
    """The files that a job needs to go on after this epoch."""
    read_to = {number: offset["logOffset"] for number, offset in enumerate(offsets) if _is_entry(offset)}
    paths = sorted(tree)
    bases = _bases(paths, epoch + 1)
    return [path for path in paths if _is_needed(path, epoch, read_to, bases)]


def _is_entry(offset: Json) -> bool:
    return isinstance(offset, dict) and isinstance(offset.get("logOffset"), int)


def _bases(paths: Iterable[str], newest: int) -> dict[str, int]:
    """By folder: the newest whole snapshot of its state that is not too new; deltas before it are not needed."""
    bases: dict[str, int] = {}
    for path in paths:
        match = _STATE_FILE.fullmatch(path)
        if match is not None and match["kind"] in _WHOLE[1] and int(match["version"]) <= newest:
            bases[match["folder"]] = max(bases.get(match["folder"], 0), int(match["version"]))
    return bases


def _is_needed(path: str, epoch: int, read_to: Mapping[int, int], bases: Mapping[str, int]) -> bool:
    top, _, rest = path.partition("/")
    if top in ("offsets", "commits"):
        return rest in (str(epoch), str(epoch - 1))
    if top == "sources":
        number, _, name = rest.partition("/")
        entry = name.partition(".")[0]
        return int(number) not in read_to or (entry.isdigit() and int(entry) <= read_to[int(number)])
    if top == "state":
        return _is_state_needed(path, epoch, bases)
    if top == "tallystick":
        about = _JOURNAL_FILE.fullmatch(path)
        return int(about["epoch"]) <= epoch if about is not None else rest.startswith(("generations/", "audit/"))
    return path == "metadata"


def _is_state_needed(path: str, epoch: int, bases: Mapping[str, int]) -> bool:
    described = re.search(r"/_metadata/v2/(\d+)$", path)
    if described is not None:
        return int(described[1]) <= epoch
    match = _STATE_FILE.fullmatch(path)
    if match is None:
        return True  # schemas, and what snapshots share
    base, found = bases.get(match["folder"], 0), int(match["version"])
    return found == base if match["kind"] in _WHOLE[1] else base < found <= epoch + 1


def read_manifest(savepoint: Place) -> Json:
    """What a savepoint says of itself. Refuses what a newer version wrote."""
    folder = folder_at(savepoint)
    try:
        data = folder.read(MANIFEST)
    except (FileNotFoundError, NotADirectoryError) as cause:
        raise CheckpointError(f"{folder} is no savepoint: there is no {MANIFEST} in it ({cause.strerror})") from cause
    except OSError as cause:
        raise CheckpointError(f"{folder} cannot be read: {cause.strerror or cause}") from cause
    manifest = decode("savepoint", data, f"{folder}/{MANIFEST}")
    ours = version("pyspark")
    if _numbers(manifest["spark"]) > _numbers(ours):
        raise NewerCheckpointError(
            f"{folder} was written with Spark {manifest['spark']}, this is Spark {ours}, which may not be able to "
            "read its state. install that version: pip install --upgrade tallystick"
        )
    return manifest


def verify(savepoint: Place) -> Json:
    """The manifest of a savepoint whose every file is what it was. `CheckpointError` names the first that is not."""
    folder = folder_at(savepoint)
    manifest = read_manifest(folder)
    for path, said in manifest["files"].items():
        try:
            found = folder.digest(path)
        except OSError as cause:
            raise CheckpointError(
                f"the savepoint {folder} is not whole: {path} cannot be read ({cause.strerror}). take another copy"
            ) from cause
        if found != said:
            raise CheckpointError(
                f"the savepoint {folder} was damaged: {path} has {found['bytes']} bytes and SHA-256 "
                f"{found['sha256'][:12]}…, needed {said['bytes']} and {said['sha256'][:12]}…. take another copy"
            )
    return manifest


def restore(savepoint: Place, checkpoint: Place, job: str | None = None) -> Json:
    """Make a checkpoint of a savepoint, for the same job or another; returns the manifest. Verifies every file.

    A new owner with a new id: names of transactions never meet those of the original. His mark is written first and his
    journal's own file last, so that what was cut short in S3, which has no rename, is not taken for a checkpoint
    (`whole`).
    """
    source, place = folder_at(savepoint), folder_at(checkpoint)
    manifest = verify(source)
    _check_free(place)
    partial = place.beside()
    owner = {"job": job or manifest["job"], "id": uuid.uuid4().hex[:12]}
    try:
        partial.write(MARK, iter([encode("mark", owner)]))
        for path, said in manifest["files"].items():
            if partial.copy(path, source) != said:
                raise CheckpointError(f"{source}/{path} changed while it was copied: nothing was restored")
        partial.write("tallystick/job.json", iter([encode("job", owner)]))
        place.appear(partial)
    except OSError as cause:
        partial.discard()
        raise CheckpointError(f"{place} was not restored: {cause.strerror or cause}. nothing was left there") from cause
    except BaseException:
        partial.discard()
        raise
    return manifest


def _check_free(target: Folder) -> None:
    try:
        free = not target.files()
    except NotADirectoryError:
        free = False
    except OSError as cause:
        raise CheckpointError(f"{target} cannot be used: {cause.strerror or cause}") from cause
    if not free:
        raise CheckpointError(f"{target} is there already and not empty: nothing was written. choose a new folder")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])
