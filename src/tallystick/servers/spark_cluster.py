"""A standalone Spark cluster from the pip package: one master and two workers with one core each.

Executors are processes of the workers, one per worker and application. They are found by their command line, which
names the worker, so that an executor whose worker died is found, too.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallystick.errors import SetupError
from tallystick.jvm import find_java
from tallystick.servers.base import Server
from tallystick.servers.ports import LOOPBACK
from tallystick.servers.process import Program, ServerProcess

HOSTS = (LOOPBACK, "localhost")
"""One worker each. Spark runs the second copy of a slow task only on a host of another name."""
EXECUTOR_MAIN = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
GONE_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Executor:
    """The JVM that runs one application's tasks on one worker."""

    pid: int
    app_id: str
    executor_id: str
    worker: int


class SparkCluster(Server):
    """Ready when both workers are registered. ``address`` is what a session takes as its master."""

    name = "spark"
    ports_needed = 2 + 2 * len(HOSTS)

    @property
    def version(self) -> str:
        import pyspark

        return pyspark.__version__

    @property
    def address(self) -> str:
        return f"spark://{LOOPBACK}:{self.ports[0]}"

    @property
    def web_address(self) -> str:
        """Of the master's page."""
        return f"http://{LOOPBACK}:{self.ports[1]}"

    def prepare(self) -> None:
        (self.data / "scratch").mkdir(parents=True, exist_ok=True)

    def programs(self) -> list[Program]:
        rpc, web = self.ports[:2]
        master = ["--host", LOOPBACK, "--port", str(rpc), "--webui-port", str(web)]
        return [self._java("master", "master.Master", *master), *map(self._worker, range(len(HOSTS)))]

    def ready(self) -> bool:
        return self.workers_alive() == len(HOSTS)

    def workers_alive(self) -> int:
        """How many workers the master counts on; 0 if there is no master."""
        return int(self._state().get("aliveworkers", 0))

    def stop(self) -> None:
        super().stop()
        self._end_executors()

    def kill(self) -> None:
        super().kill()
        self._end_executors()

    def worker(self, number: int) -> ServerProcess:
        """The daemon of a worker, 0 or 1. Its executors are processes of their own."""
        return self.processes[1 + number]

    def executors(self) -> list[Executor]:
        """The executors that live now, of all applications, by worker."""
        found = [executor for pid, command in _processes() if (executor := self._parse(pid, command)) is not None]
        return sorted(found, key=lambda executor: (executor.worker, executor.pid))

    def kill_executor(self, executor: Executor) -> None:
        """SIGKILL to its JVM. A living worker starts another one for the same application."""
        with suppress(ProcessLookupError):  # it ended by itself
            os.kill(executor.pid, signal.SIGKILL)
        _wait_gone(f"executor {executor.pid}", lambda: executor in self.executors())

    def kill_worker(self, number: int) -> None:
        """SIGKILL to the daemon alone. Its executors notice, and end by themselves a little later."""
        process = self.worker(number)
        if process.pid is None:
            raise SetupError(f"worker {number} of {self.folder} does not run: start it again with heal()")
        os.kill(process.pid, signal.SIGKILL)
        _wait_gone(f"worker {number}", lambda: process.running)

    def heal(self) -> None:
        """Start what died, and wait until the master counts on all workers."""
        for process in self.processes:
            if not process.running:
                process.start()
        self._wait_ready()

    def _end_executors(self) -> None:
        """Those of a worker that was killed alone: nobody else looks after them."""
        for executor in self.executors():
            self.kill_executor(executor)

    def _parse(self, pid: int, command: list[str]) -> Executor | None:
        """None if it is no executor, or one of another cluster."""
        if EXECUTOR_MAIN not in command:
            return None
        options = dict(itertools.pairwise(command))
        port = int(options.get("--worker-url", ":0").rpartition(":")[2])
        ports = self.ports[2::2]
        if port not in ports:
            return None
        return Executor(pid, options["--app-id"], options["--executor-id"], ports.index(port))

    def _state(self) -> Mapping[str, Any]:
        connection = http.client.HTTPConnection(LOOPBACK, self.ports[1], timeout=5)
        try:
            connection.request("GET", "/json/")
            state: Mapping[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):  # nobody listens yet, or it is half started
            return {}
        finally:
            connection.close()
        return state

    def _worker(self, number: int) -> Program:
        rpc, web = self.ports[2 + 2 * number : 4 + 2 * number]
        options = ["--host", HOSTS[number], "--port", str(rpc), "--webui-port", str(web)]
        options += ["--cores", "1", "--memory", "1g", "--work-dir", str(self.data / f"worker-{number}")]
        return self._java(f"worker-{number}", "worker.Worker", *options, self.address)

    def _java(self, name: str, main: str, *arguments: str) -> Program:
        home = _spark_home()
        command = [str(find_java()), "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-Dspark.master.rest.enabled=false", "-cp", str(home / "jars" / "*")]
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": _scala_version(home),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_LOCAL_DIRS": str(self.data / "scratch"),
            "PYSPARK_PYTHON": sys.executable,
        }
        return Program(name, [*command, f"org.apache.spark.deploy.{main}", *arguments], environment)


def _wait_gone(what: str, there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while there():
        if time.monotonic() > deadline:
            raise SetupError(f"{what} does not end after SIGKILL")
        time.sleep(0.05)


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _scala_version(home: Path) -> str:
    """The worker builds the executors' commands and, without its start script, is not told."""
    for jar in (home / "jars").glob("spark-core_*.jar"):
        return jar.name.removeprefix("spark-core_").partition("-")[0]
    raise SetupError(f"{home} holds no Spark: found no jars/spark-core_*.jar. 'pip install pyspark' brings it")


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Every process of this machine that may be looked at, with the words of its command."""
    proc = Path("/proc")
    if (proc / "self" / "cmdline").exists():
        for entry in proc.iterdir():
            if entry.name.isdigit():
                with suppress(OSError):  # it ended meanwhile
                    yield int(entry.name), (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        return
    listed = subprocess.run(["ps", "-axww", "-o", "pid=,command="], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        pid, *command = line.split()
        yield int(pid), command
