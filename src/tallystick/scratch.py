"""A folder of this user for what processes of one machine share while they live: locks, sockets."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path


def scratch_folder(*parts: str) -> Path:
    """Below the system's folder for temporary files, closed to others. `OSError` if it cannot be had."""
    root = Path(tempfile.gettempdir()) / f"tallystick-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", str(root))
    if found.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "other users can enter it: chmod 700", str(root))
    folder = root.joinpath(*parts)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
