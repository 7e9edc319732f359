"""A standby takes over from a leader that was killed, or paused; and a paused leader that wakes up stops itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tallystick.journal import Journal
from tallystick.journal.lease import Leases
from tallystick.journal.posix import PosixStore
from tallystick.prover import JobProcess, tally

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

TIMEOUT_S = 200
TAKE_OVER_S = 10
JOB = """
import tallystick as ts
from pathlib import Path

HERE = Path(__file__).parent
job = ts.Job(
    "led",
    source=ts.sources.Files(HERE / "in", format="json", schema="id long", max_files_per_epoch=1),
    sink=ts.sinks.Files(HERE / "out", format="json"),
    checkpoint=ts.Checkpoint(HERE / "checkpoint", interval="200ms"),
)
"""


class Drivers:
    """``tallystick run`` in process groups of their own, on one job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = PosixStore(folder / "checkpoint" / "tallystick")
        self.made: list[JobProcess] = []
        self.fed = 0
        (folder / "job.py").write_text(JOB)
        (folder / "in").mkdir()

    def start(self, name: str, *options: str) -> JobProcess:
        command = ["-m", "tallystick", "run", str(self.folder / "job.py"), "--master", "local[2]", "--fast-start"]
        self.made.append(JobProcess([*command, *options], self.folder / name))
        return self.made[-1]

    def feed(self, files: int) -> None:
        """So many files of ten rows: an epoch each."""
        for _ in range(files):
            rows = range(self.fed, self.fed + 10)
            staged = self.folder / "staged"
            staged.write_text("".join(f'{{"id":{row}}}\n' for row in rows))
            staged.rename(self.folder / "in" / f"{self.fed:06d}.json")
            self.fed += 10

    def until(self, what: str, found: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not found():
            assert time.monotonic() < deadline, f"not in {timeout_s:g} s: {what}\n" + "\n".join(
                f"--- {process.log.name}\n{process.tail()}" for process in self.made
            )
            time.sleep(0.05)

    def term(self) -> int:
        return Leases(self.store).term()

    def decided(self) -> int:
        return max((record.attempt.epoch for record in Journal(self.store).records()), default=-1)

    def generation(self) -> int:
        return max(Journal(self.store).generations(), default=0)

    def ids(self) -> list[int]:
        lines = [line for path in (self.folder / "out").glob("*.json") for line in path.read_text().splitlines()]
        return [int(line.split(":")[1].rstrip("}")) for line in lines]

    def leader_and_standby(self) -> tuple[JobProcess, JobProcess]:
        self.feed(2)
        leader = self.start("leader")
        self.until("the leader's epochs", lambda: self.decided() >= 1)
        standby = self.start("standby", "--standby")
        self.until("a standby that waits", lambda: "standby: led by process" in standby.log.read_text())
        time.sleep(2)
        assert (self.term(), self.generation()) == (1, 1), "a standby does not run beside its leader"
        return leader, standby

    def until_all_is_written(self) -> None:
        self.until("all rows", lambda: len(self.ids()) >= self.fed)

    def assert_exact(self) -> None:
        counted = tally(range(self.fed), self.ids())
        assert counted.exact, counted


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    made = Drivers(tmp_path)
    yield made
    for process in made.made:
        process.kill()


def test_a_standby_takes_over_from_a_leader_that_was_killed(drivers: Drivers) -> None:
    leader, standby = drivers.leader_and_standby()
    drivers.feed(4)
    time.sleep(0.5)  # in the middle of whatever it does
    leader.kill()
    killed_s = time.monotonic()
    drivers.until("a takeover", lambda: drivers.term() == 2, TAKE_OVER_S)
    term_s = time.monotonic() - killed_s
    drivers.feed(2)
    drivers.until("an epoch of the standby", lambda: drivers.generation() == 2)
    print(f"\nterm claimed after {term_s:.1f} s, first epoch begun after {time.monotonic() - killed_s:.1f} s")
    drivers.until_all_is_written()
    os.kill(standby.pid, signal.SIGINT)
    assert standby.wait(TIMEOUT_S).status == 0, standby.tail()
    drivers.assert_exact()


def test_a_paused_leader_that_wakes_up_stops_itself_and_harms_nothing(drivers: Drivers) -> None:
    leader, standby = drivers.leader_and_standby()
    drivers.feed(4)
    time.sleep(0.5)  # in the middle of whatever it does
    os.killpg(leader.pid, signal.SIGSTOP)
    drivers.until("a takeover", lambda: drivers.term() == 2, TAKE_OVER_S)
    drivers.feed(2)
    drivers.until("epochs of the standby", lambda: drivers.generation() == 2)
    os.killpg(leader.pid, signal.SIGCONT)
    ended = leader.wait(60)
    assert ended.status == 1, leader.tail()
    assert "another driver" in leader.tail()
    drivers.until_all_is_written()
    os.kill(standby.pid, signal.SIGINT)
    assert standby.wait(TIMEOUT_S).status == 0, standby.tail()
    drivers.assert_exact()
    assert drivers.generation() == 2, "the old leader has not come back"


@pytest.mark.slow
def test_of_two_standbys_one_takes_over_and_the_other_goes_on_waiting(drivers: Drivers) -> None:
    leader, first = drivers.leader_and_standby()
    second = drivers.start("second", "--standby")
    drivers.until("a second that waits", lambda: "standby: led by process" in second.log.read_text())
    leader.kill()
    drivers.feed(2)
    drivers.until("a takeover", lambda: drivers.generation() == 2)
    drivers.until_all_is_written()
    assert drivers.term() == 2
    assert first.running()
    assert second.running()
    took_over = [process for process in (first, second) if "term 2 is ours" in process.log.read_text()]
    assert len(took_over) == 1
    took_over[0].kill()
    drivers.until("the other one", lambda: drivers.term() == 3)
    drivers.assert_exact()
