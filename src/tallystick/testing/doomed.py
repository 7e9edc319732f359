"""A process that uses a sink and is killed in the middle: what no ``finally`` and no destructor can tidy up.

The sink travels as a cloudpickle, which is also how Spark ships it to executors.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tallystick.records import Json
from tallystick.sinks.base import SliceContext, TransactionalSink

PATIENCE_S = 120


def prepare_and_die(
    sink: TransactionalSink[Any], context: SliceContext, batches: Sequence[pa.RecordBatch], folder: Path
) -> Json:
    """Begin, write and pre-commit in a process that is then killed; returns the committable that it left behind."""
    return json.loads(_run("prepare", (sink, context, _pack(batches)), folder))


def write_and_die(
    sink: TransactionalSink[Any],
    context: SliceContext,
    batches: Sequence[pa.RecordBatch],
    folder: Path,
    after_s: float = 0.0,
) -> None:
    """Begin and write in a process that is killed ``after_s`` later, before it can pre-commit."""
    _run("write", (sink, context, _pack(batches), after_s), folder)


def commit_and_die(sink: TransactionalSink[Any], committable: Json, folder: Path) -> None:
    """Commit in a process that is killed before anybody hears the outcome."""
    _run("commit", (sink, committable), folder)


def _run(action: str, cargo: tuple[Any, ...], folder: Path) -> str:
    from pyspark import cloudpickle

    task, answer = folder / f"{action}.task", folder / f"{action}.answer"
    task.write_bytes(cloudpickle.dumps(cargo))  # type: ignore[no-untyped-call]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # run by path: as a module it would import this whole package, and pytest with it, into a process that soon dies
    command = [sys.executable, __file__, action, str(task), str(answer)]
    ended = subprocess.run(command, env=environment, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    if ended.returncode != -signal.SIGKILL:
        raise AssertionError(f"the doomed process failed before it could be killed:\n{ended.stderr.decode()}")
    return answer.read_text() if action == "prepare" else ""


def _pack(batches: Sequence[pa.RecordBatch]) -> str:
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return base64.b64encode(buffer.getvalue()).decode()


def _perform(action: str, cargo: tuple[Any, ...]) -> Json:
    sink: TransactionalSink[Any] = cargo[0]
    if action == "commit":
        return sink.commit(cargo[1]).value
    transaction = sink.begin_transaction(cargo[1])
    with pa.ipc.open_stream(base64.b64decode(cargo[2])) as stream:
        for batch in stream:
            sink.write(transaction, batch)
    if action == "prepare":
        return sink.pre_commit(transaction)
    time.sleep(cargo[3])
    return None


def main() -> None:
    action, task, answer = sys.argv[1:]
    result = _perform(action, pickle.loads(Path(task).read_bytes()))
    Path(answer).write_text(json.dumps(result))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
