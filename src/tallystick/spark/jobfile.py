"""Find the job that ``FILE[:NAME]`` names."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tallystick.errors import JobFileError, TallystickError

if TYPE_CHECKING:
    from tallystick.spark.job import Job


def load_job(spec: str) -> Job:
    """Run the file and pick its job, by the name of its variable or its own. No Spark is started.

    A `TallystickError` that the file raises comes through as it is; any other error of it becomes a `JobFileError`.
    """
    path, _ = parse(spec)
    return job_of(load_file(path), spec)


def job_of(module: ModuleType, spec: str) -> Job:
    """The job that ``FILE[:NAME]`` names, from its file as it was loaded."""
    path, name = parse(spec)
    jobs = find_jobs(module)
    if not jobs:
        raise JobFileError(f"{path} declares no job: needed a line such as: job = ts.Job('app-pv', …)")
    if name is None:
        if len({id(job) for job in jobs.values()}) == 1:
            return next(iter(jobs.values()))
        raise JobFileError(f"{path} declares several jobs: {_listed(jobs)}. name one, as {spec}:{next(iter(jobs))}")
    if name in jobs:
        return jobs[name]
    named = {id(job): job for job in jobs.values() if job.name == name}
    if len(named) == 1:
        return next(iter(named.values()))
    found = "more than one job" if named else "no job"
    raise JobFileError(f"{path} declares {found} called {name!r}: it has {_listed(jobs)}")


def parse(spec: str) -> tuple[Path, str | None]:
    """``app.py:job`` is a file and a name, unless a file is really called that."""
    whole = Path(spec)
    file, colon, name = spec.rpartition(":")
    if whole.exists() or not colon:
        path, wanted = whole, None
    else:
        path, wanted = Path(file), name
    if path.is_dir():
        raise JobFileError(f"{path} is a folder: needed a Python file that declares a job")
    if not path.exists():
        raise JobFileError(
            f"there is no file {path}: needed a Python file that declares a job. to get one: tallystick init"
        )
    return path.resolve(), wanted or None


def find_jobs(module: ModuleType) -> dict[str, Job]:
    """The jobs among the module's variables."""
    from tallystick.spark.job import Job

    return {name: value for name, value in vars(module).items() if isinstance(value, Job)}


def load_file(path: Path) -> ModuleType:
    """Run a Python file as a module that is not ``__main__``, with its folder on the path.

    Workers cannot import it, so its functions are pickled with their code; what it imports from its own folder they
    find through PYTHONPATH, which the JVM hands on to them.
    """
    from pyspark import cloudpickle

    name = f"tallystick_job_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise JobFileError(f"{path} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    _put_on_path(path.parent)
    sys.modules[name] = module  # dataclasses and pickling look their module up here
    try:
        spec.loader.exec_module(module)
    except TallystickError:
        raise
    except (Exception, SystemExit) as failure:
        raise in_user_file(failure, path) from failure
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def _put_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    known = os.environ.get("PYTHONPATH", "")
    if str(folder) not in known.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (str(folder), known) if part)


def _listed(jobs: dict[str, Job]) -> str:
    return ", ".join(name if name == job.name else f"{name} ({job.name})" for name, job in jobs.items())


def in_user_file(failure: BaseException, path: Path) -> JobFileError:
    """What went wrong in somebody's Python file, with the line of that file and not of ours."""
    line = _line_in(failure, path)
    where = f"{path}, line {line}" if line is not None else str(path)
    kind = type(failure).__name__
    text = failure.msg if isinstance(failure, SyntaxError) else shortened(failure)
    return JobFileError(f"{where}: {kind}: {text}" if text else f"{where}: {kind}", file=str(path), line=line)


def passes_through(failure: BaseException, path: Path) -> bool:
    """Whether the failure was raised below a line of this file."""
    return _line_in(failure, path) is not None


def _line_in(failure: BaseException, path: Path) -> int | None:
    if isinstance(failure, SyntaxError) and failure.filename == str(path):
        return failure.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(failure.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines else None


def shortened(failure: BaseException) -> str:
    """Spark puts the plan and the stack of the JVM below the first line of its errors."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    kept = 1 if type(failure).__module__.startswith(("pyspark.", "py4j.")) else 6
    return " ".join(lines[:kept]).rstrip(".;")
