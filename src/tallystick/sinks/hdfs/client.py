"""The HDFS client: hdfs-native, which speaks HDFS' own protocol without a JVM; one per process and address.

What it raises becomes an `OSError` with a number, so that the commit can tell what waiting cures from what it does not.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tallystick.errors import MissingExtraError, SinkError

PATIENCE = {
    "dfs.client.failover.max.attempts": "5",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "2000",
}
"""How often a NameNode that is not there is tried: the client's own way takes three minutes for every call, and whoever
calls here asks again by himself."""

_NUMBERS = {
    "AccessControlException": errno.EACCES,
    "DSQuotaExceededException": errno.EDQUOT,
    "NSQuotaExceededException": errno.EDQUOT,
    "FileAlreadyExistsException": errno.EEXIST,
    "FileNotFoundException": errno.ENOENT,
    "InvalidPathException": errno.EINVAL,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "PathIsNotDirectoryException": errno.ENOTDIR,
    "PathComponentTooLongException": errno.ENAMETOOLONG,
    "SafeModeException": errno.EROFS,
}

_clients: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}


def client(address: str, settings: Mapping[str, str]) -> Any:
    """The client for ``hdfs://HOST:PORT`` or ``hdfs://NAMESERVICE``, connected when it is first used."""
    key = (address, tuple(sorted(settings.items())))
    if key not in _clients:
        with told():
            _clients[key] = library().Client(address, {**PATIENCE, **settings})
    return _clients[key]


def library() -> Any:
    try:
        import hdfs_native
    except ImportError as cause:
        raise MissingExtraError(
            f"HDFS needs the package hdfs-native, which cannot be imported here ({cause}). on this machine, and on "
            "every machine that runs executors: pip install 'tallystick[hdfs]'"
        ) from cause
    return hdfs_native


@contextmanager
def told() -> Iterator[None]:
    """Every failure of the client becomes an `OSError` with a number and one line of the server's words."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, _words(error)) from error
    except FileExistsError as error:
        raise FileExistsError(errno.EEXIST, _words(error)) from error
    except OSError as error:
        raise OSError(error.errno or errno.EIO, _words(error)) from error
    except (RuntimeError, ValueError) as error:
        raise as_os_error(str(error)) from error


def as_os_error(text: str) -> OSError:
    """The server's exception, as the client prints it: ``RPCError("org.….NameOfIt", "words\\n\\tat …")``.

    Failures of its own it prints as ``NameOfIt("words")``. What a DataNode said, such as that its disk is full, it
    keeps to itself.
    """
    match = re.search(r'RPCError\("(?P<kind>[\w.$]+)", "(?P<words>.*?)(?:\\n|"\)|\Z)', text, re.DOTALL)
    if match is None:
        own = re.fullmatch(r'(?P<kind>\w+)\("(?P<words>.*)"\)', text)
        words = f"{own['words']} ({own['kind']})" if own else text.partition("\n")[0]
        return OSError(errno.EIO, words or "no words")
    kind = match["kind"].rpartition(".")[2]
    return OSError(_NUMBERS.get(kind, errno.EIO), f"{match['words']} ({kind})")


def _words(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def unreachable(address: str, error: OSError) -> SinkError:
    return SinkError(
        f"{address} cannot be used: {error.strerror}. is HDFS running there, may this user write to it, and have its "
        f"DataNodes free space? look with: hdfs dfs -ls {address}/; hdfs dfs -df {address}/"
    )
