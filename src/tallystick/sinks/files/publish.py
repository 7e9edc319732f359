"""The commit of files: rename what is staged into place, as often as asked, with the effect of once.

1.  A staged file that is there is not published: a rename takes it away and puts it into place in one step.
2.  A staged file that is not there while its transaction's folder is: it was published. Whether the published file
    is still there does not matter: consumers may take files away as soon as they see them.
3.  The folder itself is gone: nobody deletes it before `settled` except `abort`. All published files there: committed
    long ago. None there: expired. Some there: somebody deleted things by hand, and a person must look.
4.  The staging root is gone: the target is deleted, or not mounted just now. That is not "surely never published".
5.  Confirmed means that it survives a loss of power: names are fsynced first, also when a repeated commit finds that
    all is renamed, because the first one may have died between renaming and fsync.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from tallystick.records import Json, Outcome
from tallystick.sinks.staging import Staging, for_each, sync

logger = logging.getLogger("tallystick.sinks.files")

_FOR_A_PERSON = frozenset(
    {errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EXDEV}
)
"""Errors that waiting does not cure. All others (full, read-only, stale, forbidden, …) may pass: retry later."""


def publish_all(target: Path, staging: Staging, committables: Sequence[Json]) -> list[Outcome]:
    """Commit each in order; fsync each folder once for all of them."""
    outcomes = [_publish(target, staging, committable) for committable in committables]
    done = [c for c, outcome in zip(committables, outcomes, strict=True) if outcome.confirmed]
    try:
        _sync_folders(target, (final for committable in done for _, final in committable["files"]))
    except OSError as error:
        logger.warning("published files of %s are not safely on disk yet, asking again later: %s", target, error)
        return [Outcome.RETRY_LATER if outcome.confirmed else outcome for outcome in outcomes]
    return outcomes


def _publish(target: Path, staging: Staging, committable: Json) -> Outcome:
    folder = staging.locate(committable["dir"])
    try:
        if folder.is_dir():
            return _rename_staged(target, folder, committable["files"])
        return _without_folder(target, staging, folder, committable["files"])
    except OSError as error:
        return _explain(target, committable, error)


def _rename_staged(target: Path, folder: Path, files: Json) -> Outcome:
    outcome = Outcome.ALREADY_COMMITTED
    for staged, final in files:
        source, place = folder / staged, target / final
        if not source.exists():
            continue
        if place.exists() and source.exists():
            # looked at twice, so it was not another process that committed it just now: names are unique to a
            # transaction, this file is not ours, and renaming would silently destroy it
            raise FileExistsError(errno.EEXIST, "another file already has the name to publish under", str(place))
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            source.rename(place)
        except FileNotFoundError:
            if folder.is_dir() and not source.exists() and place.parent.is_dir():
                continue  # another process committed it between our look and our rename
            raise
        outcome = Outcome.COMMITTED
    return outcome


def _without_folder(target: Path, staging: Staging, folder: Path, files: Json) -> Outcome:
    if not staging.root.is_dir():
        logger.warning(
            "the staging folder %s is gone while %s is to be committed: is the target mounted? asking again later",
            staging.root,
            folder.name,
        )
        return Outcome.RETRY_LATER
    there = [final for _, final in files if (target / final).exists()]
    if len(there) == len(files):
        return Outcome.ALREADY_COMMITTED
    if not there:
        return Outcome.EXPIRED
    missing = sorted({final for _, final in files} - set(there))
    logger.error(
        "the staging folder %s was deleted when %d of %d files were published; missing in %s: %s. restore them, or "
        "create empty files of these names to accept the loss, and start the job again",
        folder,
        len(there),
        len(files),
        target,
        ", ".join(missing),
    )
    return Outcome.REFUSED


def _explain(target: Path, committable: Json, error: OSError) -> Outcome:
    if error.errno in _FOR_A_PERSON:
        logger.error("%s cannot be published in %s until this is removed: %s", committable["dir"], target, error)
        return Outcome.REFUSED
    logger.warning("%s cannot be published in %s now, asking again later: %s", committable["dir"], target, error)
    return Outcome.RETRY_LATER


def _sync_folders(target: Path, finals: Iterable[str]) -> None:
    """The folders of these files, and those above them up to the target: any of them may be new."""
    folders = {target / folder for final in finals for folder in Path(final).parents}

    def sync_one(folder: Path) -> None:
        try:
            sync(folder)
        except FileNotFoundError:
            if folder == target:
                raise
            logger.info("%s was taken away after it was published", folder)

    for_each(sync_one, sorted(folders))
