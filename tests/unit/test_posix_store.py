"""What only the local disk can show: kills, the lock, a full and a read-only disk."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tallystick.errors import JournalError
from tallystick.journal.leftovers import AGE_MAX_S, host_name, is_leftover, temporary_name
from tallystick.journal.posix import PosixStore

KEY = "attempts/000000000003.0000001.json"
DEAD = f"{host_name()}~99999999~{'0' * 32}"


@contextmanager
def python(code: str, *arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process of its own group that runs the code; killed at the end if it still runs."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def left_behind(store: PosixStore) -> list[str]:
    return sorted(path.name for path in (store.root / ".tmp").iterdir())


def test_killed_between_writing_and_linking_leaves_nothing(tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        from tallystick.journal.posix import PosixStore
        store = PosixStore(Path(sys.argv[1]))
        for epoch in (2, 3):
            store.put_if_absent(f"attempts/{epoch:012d}.0000001.json", b"decided")
    """
    with python(code, tmp_path, TALLYSTICK_KILL="inside-decide@3") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, said
    store = PosixStore(tmp_path)
    assert store.list("attempts") == ["000000000002.0000001.json"]
    assert store.read(KEY) is None
    assert len(left_behind(store)) == 1
    assert store.try_lock()
    assert left_behind(store) == [], "the next driver clears up"
    assert store.put_if_absent(KEY, b"decided by another")
    store.unlock()


def test_exactly_one_of_many_processes_wins(tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        from tallystick.journal.posix import PosixStore
        root, me = Path(sys.argv[1]), int(sys.argv[2])
        store = PosixStore(root)
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(40):
            if store.put_if_absent(f"attempts/{number}.json", bytes([me]) * 20_000):
                print(number)
    """
    racers = 4
    with ExitStack() as running:
        processes = [running.enter_context(python(code, tmp_path, racer)) for racer in range(racers)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        wins = [set(map(int, process.communicate(timeout=60)[0].split())) for process in processes]
    assert sum(len(won) for won in wins) == 40, "exactly one winner for each key"
    assert set.union(*wins) == set(range(40))
    store = PosixStore(tmp_path)
    for racer in range(racers):
        for number in wins[racer]:
            assert store.read(f"attempts/{number}.json") == bytes([racer]) * 20_000
    assert left_behind(store) == []


def test_a_rival_that_comes_at_the_last_moment_wins(tmp_path: Path) -> None:
    """The rival writes right before the system call that would give the record its name: essay 2 of the module."""
    code = """
        import sys
        from pathlib import Path
        from tallystick.journal.posix import PosixStore
        target = Path(sys.argv[1]) / "attempts" / "1.json"
        def rival(event, arguments):
            if event in ("os.link", "os.rename") and not target.exists():
                target.write_bytes(b"rival")
        sys.addaudithook(rival)
        print(PosixStore(Path(sys.argv[1])).put_if_absent("attempts/1.json", b"mine"), target.read_text())
    """
    with python(code, tmp_path) as process:
        said, error = process.communicate(timeout=60)
    assert said.split() == ["False", "rival"], error


HOLD = """
    import os, sys, time
    from pathlib import Path
    from tallystick.journal.posix import PosixStore
    store = PosixStore(Path(sys.argv[1]))
    assert store.try_lock()
    if sys.argv[2] == "fork" and os.fork() == 0:
        print("child", os.getpid(), flush=True)
        time.sleep(60)
        os._exit(0)
    if sys.argv[2] == "plain":
        print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_keeps_others_out_and_dies_with_its_holder(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    with python(HOLD, tmp_path, "plain") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert not store.try_lock()
        assert str(store.holder()) == f"process {process.pid} on {host_name()}"
        process.kill()
        process.wait(timeout=30)
        assert store.holder() is None
        assert store.try_lock()
        assert str(store.holder()) == f"process {os.getpid()} on {host_name()}"
    assert not PosixStore(tmp_path).try_lock(), "nor does another store of this process get it"
    store.unlock()
    assert store.holder() is None
    second = PosixStore(tmp_path)
    assert second.try_lock()
    second.unlock()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    with python(HOLD, tmp_path, "fork") as process:
        assert process.stdout is not None
        word, child = process.stdout.readline().split()
        assert word == "child"
        try:
            assert not PosixStore(tmp_path).try_lock()
            process.kill()
            process.wait(timeout=30)
            os.kill(int(child), 0)  # it lives
            store = PosixStore(tmp_path)
            assert store.try_lock()
            store.unlock()
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_only_leftovers_of_the_dead_are_removed(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    assert store.put_if_absent(KEY, b"")
    mine, elsewhere, old = temporary_name(), f"other-host~1~{'0' * 32}", f"other-host~2~{'0' * 32}"
    for name in (mine, elsewhere, old, DEAD):
        (tmp_path / ".tmp" / name).write_bytes(b"half")
    long_ago = time.time() - AGE_MAX_S - 1
    os.utime(tmp_path / ".tmp" / old, (long_ago, long_ago))
    assert store.try_lock()
    store.unlock()
    assert left_behind(store) == sorted([mine, elsewhere])


def test_leftovers_are_told_by_host_process_and_age() -> None:
    assert not is_leftover(temporary_name(), 0.0)
    assert is_leftover(DEAD, 0.0)
    assert not is_leftover("somebody's file", 0.0)
    assert is_leftover("somebody's file", AGE_MAX_S + 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a disk of 64 KiB with the given option; only the superuser of a machine that allows it can."""
    mounted = tmp_path / "disk"
    mounted.mkdir()

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size=64k,{options}", "tmpfs", str(mounted)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        except FileNotFoundError:
            pytest.skip("no mount command")
        if done.returncode != 0:
            pytest.skip(f"cannot mount a disk here: {done.stderr.strip()}")
        return mounted

    yield mount
    if mounted.is_mount():
        subprocess.run(["umount", "--lazy", str(mounted)], check=True, timeout=30)


def test_a_full_disk_is_named_and_leaves_nothing(small_disk: Callable[[str], Path]) -> None:
    store = PosixStore(small_disk("rw") / "journal")
    assert store.put_if_absent("attempts/small", b"x")
    with pytest.raises(JournalError, match=r"attempts/large could not be written.* disk is full") as caught:
        store.put_if_absent("attempts/large", bytes(1 << 20))
    assert caught.value.details["file"].endswith("journal/attempts/large")
    assert store.list("attempts") == ["small"]
    assert left_behind(store) == []
    assert store.put_if_absent("attempts/next", b"y"), "and the space is free again"


def test_a_read_only_disk_is_named(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("rw")
    store = PosixStore(disk / "journal")
    assert store.put_if_absent(KEY, b"decided")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=30)
    with pytest.raises(JournalError, match=r"attempts/x could not be written.* read-only"):
        store.put_if_absent("attempts/x", b"")
    with pytest.raises(JournalError, match=r"journal/lock could not be locked.* read-only"):
        store.try_lock()
    assert store.read(KEY) == b"decided"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_of_somebody_else_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(JournalError, match=r"could not be written.* this user may not"):
            PosixStore(tmp_path / "journal").put_if_absent(KEY, b"")
    finally:
        tmp_path.chmod(0o700)


def test_a_failed_sync_leaves_the_key_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Essay 4 of the module. No disk fails on demand here, so the system call is made to."""
    store = PosixStore(tmp_path)
    assert store.put_if_absent("attempts/before", b"x")
    real = os.fsync

    def failing(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink() == tmp_path / "attempts":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(handle)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing)
        with pytest.raises(JournalError, match=r"may or may not be on disk"):
            store.put_if_absent(KEY, b"decided")
    with pytest.raises(JournalError, match=r"may or may not be on disk"):
        store.read(KEY)
    assert store.read("attempts/before") == b"x"
    assert PosixStore(tmp_path).read(KEY) == b"decided", "a new process reads what is there"


def test_names_are_synced_before_a_new_driver_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Essay 3: the loser of a race, and a driver that starts, sync what others may not have synced."""
    PosixStore(tmp_path).put_if_absent(KEY, b"decided")
    synced: list[Path] = []
    real = os.fsync

    def watching(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())
        real(handle)

    monkeypatch.setattr(os, "fsync", watching)
    store = PosixStore(tmp_path)
    assert store.try_lock()
    assert {tmp_path, tmp_path / "attempts"} <= set(synced)
    synced.clear()
    assert not store.put_if_absent(KEY, b"lost")
    assert tmp_path / "attempts" in synced
    store.unlock()
