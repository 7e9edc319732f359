"""``tallystick receiver``: run a receiver apart from its job, look at one, and read its dead letters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.cli.console import err, out, print_json
from tallystick.cli.options import HELP, AsJson, Debug, JobFile
from tallystick.records import Json

if TYPE_CHECKING:
    from tallystick.sources.received import ReceivedSource
    from tallystick.spark.job import Job

RUN_EXAMPLES = "Examples: tallystick receiver run orders.py · tallystick receiver run jobs.py:orders --source clicks"
STATUS_EXAMPLES = "Examples: tallystick receiver status logs/orders · tallystick receiver status logs/orders --json"
DEAD_EXAMPLES = "Examples: tallystick receiver dead-letters logs/orders · … dead-letters logs/orders --last 5 --json"
SHOWN_BYTES = 120

app = typer.Typer(
    help="Receivers of sources that cannot be replayed: sockets, RabbitMQ, the X stream.",
    no_args_is_help=True,
    context_settings=HELP,
)

LogFolder = Annotated[Path, typer.Argument(metavar="LOG", help="The folder of the receiver log.")]


@app.command("run", epilog=RUN_EXAMPLES)
def run(
    job: JobFile,
    source: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which source, if the job has several with a receiver.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Receive for a job until Ctrl-C or SIGTERM, whether the job runs or not.

    For sources that are declared with ReceiverSettings(run="apart"): under a supervisor of your own, the receiver goes
    on while the job is down or is changed. Spark is not started.
    """
    from dataclasses import replace

    from tallystick.receiver.run import run_receiver
    from tallystick.spark.jobfile import load_job

    found = _source_of(load_job(job), source)
    console = err()
    console.print(f"receiving {found.name} into {found.folder}; Ctrl-C stops", soft_wrap=True)
    run_receiver(replace(found.spec(), outlives_s=None))
    console.print(f"stopped; the log {found.folder} is kept", soft_wrap=True)


@app.command("status", epilog=STATUS_EXAMPLES)
def status(log: LogFolder, as_json: AsJson = False, debug: Debug = False) -> None:
    """What a receiver does: whether it lives, how far its log and the job are, what it counted."""
    facts = _facts(log)
    if as_json:
        print_json(facts)
        return
    console = out()
    alive = f"process {facts['pid']}" if facts["alive"] else "not running"
    console.print(f"[bold]{facts['kind']}[/] {facts['state']}, {alive}", soft_wrap=True)
    if facts.get("error"):
        console.print(f"[red]{facts['error']}[/]", soft_wrap=True, markup=True)
    lag = facts["durable"] - facts["settled"]
    console.print(f"{facts['durable']:,} records durable, {facts['settled']:,} settled: a lag of {lag:,}")
    full = f" · full of {facts['full_of']}" if facts["state"] == "full" and "full_of" in facts else ""
    console.print(f"{facts['dead_letters']:,} dead letters{full} · {facts['bytes']:,} of {facts['max_bytes']:,} bytes")
    console.print(" · ".join(f"{name} {value:,}" for name, value in sorted(facts["counts"].items())) or "no counts")


@app.command("dead-letters", epilog=DEAD_EXAMPLES)
def dead_letters(
    log: LogFolder,
    last: Annotated[int, typer.Option("--last", metavar="N", min=1, help="Show so many, the newest ones.")] = 20,
    settle: Annotated[
        bool, typer.Option("--settle", help="All of them are dealt with: they may go when they are old.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """What was received and could not be a record, with the reason.

    They stay until you settle them, also when the log is at its bound: then nothing is received until you do.
    """
    from tallystick.receiver import LogReader

    reader = LogReader(log / "dead-letters")
    stop = reader.durable
    if settle:
        reader.settle(stop)
    found = [
        {
            "offset": offset,
            "reason": record.attributes.get("reason", ""),
            "attributes": {name: value for name, value in record.attributes.items() if name != "reason"},
            "id": record.id,
            "received_us": record.received_us,
            "value": record.value.decode("utf-8", "backslashreplace"),
        }
        for offset, record in reader.records(max(reader.first, stop - last), stop)
    ]
    if as_json:
        print_json(found)
        return
    from rich.markup import escape

    console = out()
    console.print(f"{stop:,} dead letters in {log}, {reader.settled:,} of them settled", soft_wrap=True)
    for letter in found:
        shown = json.dumps(str(letter["value"])[:SHOWN_BYTES], ensure_ascii=False)
        console.print(escape(f"{letter['offset']}  {letter['reason']}  {shown}"), soft_wrap=True)


def _facts(log: Path) -> dict[str, Json]:
    from tallystick.errors import ConfigError
    from tallystick.receiver import LogReader
    from tallystick.receiver.disk import Mark
    from tallystick.receiver.status import is_received, read_status

    reader = LogReader(log)
    if reader.log_id is None:
        raise ConfigError(f"{log} is no receiver log: needed the folder that the source was declared with")
    said = {"kind": "receiver", "state": "never started", "pid": None, "counts": {}, "max_bytes": 0, **read_status(log)}
    size = sum(path.stat().st_size for path in (log / "segments").glob("*.log"))
    alive = is_received(log)
    return {
        **said,
        "state": said["state"] if alive or said["state"] in ("stopped", "failed", "never started") else "killed",
        "alive": alive,
        "log": reader.log_id,
        "first": reader.first,
        "durable": reader.durable,
        "settled": Mark(log / "settled").read() or 0,
        "dead_letters": LogReader(log / "dead-letters").durable,
        "dead_letters_settled": LogReader(log / "dead-letters").settled,
        "bytes": size,
    }


def _source_of(job: Job, name: str | None) -> ReceivedSource:
    from tallystick.errors import ConfigError
    from tallystick.sources.received import ReceivedSource

    found = {key: source for key, source in job.sources.items() if isinstance(source, ReceivedSource)}
    if name is not None and name in found:
        return found[name]
    if name is not None or not found:
        wanted = f"called {name!r} " if name is not None else ""
        raise ConfigError(f"job {job.name} has no source {wanted}with a receiver: it has {', '.join(job.sources)}")
    if len(found) > 1:
        raise ConfigError(f"job {job.name} has several sources with receivers: add --source with {' or '.join(found)}")
    return next(iter(found.values()))
