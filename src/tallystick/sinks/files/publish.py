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
from pathlib import PurePath, PurePosixPath

from tallystick.records import Json, Outcome
from tallystick.sinks.filesystem import FileSystem, P, for_each
from tallystick.sinks.staging import Staging

logger = logging.getLogger("tallystick.sinks.files")

_FOR_A_PERSON = frozenset(
    {errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EXDEV}
)
"""Errors that waiting does not cure. All others (full, read-only, stale, forbidden, …) may pass: retry later."""


def publish_all(target: P, staging: Staging[P], committables: Sequence[Json]) -> list[Outcome]:
    """Commit each in order; fsync each folder once for all of them."""
    outcomes = [_publish(target, staging, committable) for committable in committables]
    done = [c for c, outcome in zip(committables, outcomes, strict=True) if outcome.confirmed]
    try:
        finals = (final for committable in done for _, final in committable["files"])
        _sync_folders(staging.files, target, finals)
    except OSError as error:
        logger.warning("published files of %s are not safely on disk yet, asking again later: %s", target, error)
        return [Outcome.RETRY_LATER if outcome.confirmed else outcome for outcome in outcomes]
    return outcomes


def _publish(target: P, staging: Staging[P], committable: Json) -> Outcome:
    folder = staging.locate(committable["dir"])
    try:
        if staging.files.is_dir(folder):
            return _rename_staged(staging.files, target, folder, committable["files"])
        return _without_folder(target, staging, folder, committable["files"])
    except OSError as error:
        return _explain(target, committable, error)


def _rename_staged(files: FileSystem[P], target: P, folder: P, names: Json) -> Outcome:
    outcome = Outcome.ALREADY_COMMITTED
    for staged, final in names:
        source, place = folder / staged, target / final
        if not files.exists(source):
            continue
        if files.exists(place) and files.exists(source):
            # looked at twice, so it was not another process that committed it just now: names are unique to a
            # transaction, this file is not ours, and renaming would silently destroy it
            raise FileExistsError(errno.EEXIST, "another file already has the name to publish under", str(place))
        files.make_folder(place.parent)
        try:
            files.rename(source, place)
        except FileNotFoundError:
            if files.is_dir(folder) and not files.exists(source) and files.is_dir(place.parent):
                continue  # another process committed it between our look and our rename
            raise
        outcome = Outcome.COMMITTED
    return outcome


def _without_folder(target: P, staging: Staging[P], folder: P, names: Json) -> Outcome:
    if not staging.files.is_dir(staging.root):
        logger.warning(
            "the staging folder %s is gone while %s is to be committed: is the target mounted? asking again later",
            staging.root,
            folder.name,
        )
        return Outcome.RETRY_LATER
    there = [final for _, final in names if staging.files.exists(target / final)]
    if len(there) == len(names):
        return Outcome.ALREADY_COMMITTED
    if not there:
        return Outcome.EXPIRED
    missing = sorted({final for _, final in names} - set(there))
    logger.error(
        "the staging folder %s was deleted when %d of %d files were published; missing in %s: %s. restore them, or "
        "create empty files of these names to accept the loss, and start the job again",
        folder,
        len(there),
        len(names),
        target,
        ", ".join(missing),
    )
    return Outcome.REFUSED


def _explain(target: PurePath, committable: Json, error: OSError) -> Outcome:
    if error.errno in _FOR_A_PERSON:
        logger.error("%s cannot be published in %s until this is removed: %s", committable["dir"], target, error)
        return Outcome.REFUSED
    logger.warning("%s cannot be published in %s now, asking again later: %s", committable["dir"], target, error)
    return Outcome.RETRY_LATER


def _sync_folders(files: FileSystem[P], target: P, finals: Iterable[str]) -> None:
    """The folders of these files, and those above them up to the target: any of them may be new."""
    folders = {target / folder for final in finals for folder in PurePosixPath(final).parents}

    def sync_one(folder: P) -> None:
        try:
            files.sync([folder])
        except FileNotFoundError:
            if folder == target:
                raise
            logger.info("%s was taken away after it was published", folder)

    for_each(sync_one, sorted(folders))
