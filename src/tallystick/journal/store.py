"""Where journal bytes live: put-if-absent, read, list, delete. That is all that the protocol needs of storage."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Store(ABC):
    """A flat, durable map from keys such as ``attempts/000000000012.0000003.json`` to bytes.

    Used on the driver only. A key is one folder and one file name. Every failure is a `JournalError` that names the
    file; absence is an answer, not a failure.
    """

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the key with all of the data, or change nothing. True if this call created it.

        Atomic against any other process, and durable when it returns. After a `JournalError` nothing is known: the
        caller must read the key before it believes anything.
        """

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """All bytes of the key, or None if it does not exist."""

    @abstractmethod
    def list(self, folder: str) -> list[str]:
        """The file names in a folder, sorted; empty if it does not exist. Unfinished writes are never listed."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the key; removing what is not there is no failure."""

    @abstractmethod
    def locate(self, key: str) -> str:
        """Where the key is, in words that a person can open: a path or a URI."""

    @abstractmethod
    def try_lock(self) -> bool:
        """Hold this store until the process ends, if nobody else does. False: another living process holds it.

        A store that cannot know answers True: safety does not rest on this lock but on fencing.
        """

    @abstractmethod
    def unlock(self) -> None:
        """Let go of what `try_lock` took. Harmless if nothing is held."""
