"""``tallystick servers``: real servers on this machine, for development and tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.cli.console import err, for_people, out, print_json
from tallystick.cli.options import HELP, AsJson, Debug
from tallystick.records import Json

if TYPE_CHECKING:
    from tallystick.servers import Server

UP_EXAMPLES = "Examples: tallystick servers up kafka · … up kafka --brokers 3 · … up hdfs --folder /tmp/hdfs --json"
DOWN_EXAMPLES = "Examples: tallystick servers down kafka · … down kafka --kill · … down kafka-cluster --remove"
STATUS_EXAMPLES = "Examples: tallystick servers status · tallystick servers status --json"

app = typer.Typer(
    help="Real servers on this machine, for development and tests: Kafka, databases, HDFS, S3 and others.",
    no_args_is_help=True,
    context_settings=HELP,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Which one: `servers status` lists them.")]
Brokers = Annotated[
    int, typer.Option("--brokers", metavar="N", help="1 or 3: kafka with 3 brokers is called kafka-cluster.")
]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", metavar="DIR", help="Where its data is. Default: servers/NAME in the cache folder."),
]


@app.command("up", epilog=UP_EXAMPLES)
def up(name: Name, folder: Folder = None, brokers: Brokers = 1, as_json: AsJson = False, debug: Debug = False) -> None:
    """Start a server in the background and wait until it serves. One that runs is left alone.

    It listens on 127.0.0.1 and goes on when this command is over. Its data and its address stay the same when it is
    started again. The first start fetches its parts.
    """
    from tallystick.servers import registry

    server = registry.server_named(_full_name(name, brokers), folder)
    registry.claim(server)
    took_s = None if server.running else _start(server)
    facts = _facts(server)
    if as_json:
        print_json({**facts, "ready_s": took_s})
        return
    console = out()
    when = "runs already" if took_s is None else f"is ready after {for_people(took_s)}"
    console.print(f"{server.name} {server.version} {when}: [bold]{server.address}[/]", soft_wrap=True)
    console.print(f"{_pids_in_words(facts['pids'])} · data and logs in {server.folder}", soft_wrap=True)
    console.print(f"to stop it: tallystick servers down {server.name}{_folder_option(folder)}", soft_wrap=True)


@app.command("down", epilog=DOWN_EXAMPLES)
def down(
    name: Name,
    folder: Folder = None,
    brokers: Brokers = 1,
    kill: Annotated[bool, typer.Option("--kill", help="End it as a crash would: SIGKILL.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Then remove its folder with all its data.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Stop a server. Its data is kept, unless --remove is given. One that does not run is no error."""
    from tallystick.servers import registry

    server = registry.server_named(_full_name(name, brokers), folder)
    there = registry.is_there(server)
    ended = there and any(process.running for process in server.processes)
    if ended:
        with _spinning(f"stopping {server.name}"):
            server.kill() if kill else server.stop()
    if remove:
        registry.remove(server)
    if as_json:
        print_json({"name": server.name, "folder": str(server.folder), "stopped": ended, "removed": remove and there})
        return
    said = ("killed" if kill else "stopped") if ended else "did not run"
    fate = "its data is removed" if remove and there else f"its data is in {server.folder}" if there else "no data"
    out().print(f"{server.name} {said}; {fate}", soft_wrap=True)


@app.command("status", epilog=STATUS_EXAMPLES)
def status(as_json: AsJson = False, debug: Debug = False) -> None:
    """List the servers: which run, where, and with what data."""
    from tallystick.servers import registry

    found = [_facts(server) for server in registry.all_servers()]
    if as_json:
        print_json(found)
    else:
        _show(found)


def _show(found: list[dict[str, Json]]) -> None:
    """Addresses and folders are long, and no use if they are cut: the folder has a line of its own."""
    from rich.markup import escape

    console = out()
    console.print(f"[bold]{'server':<13}  {'version':<7}  {'state':<14}  address[/]")
    for facts in found:
        colour = {"running": "green", "partly running": "yellow"}.get(facts["state"], "dim")
        start = f"{facts['name']:<13}  {facts['version'] or '':<7}  [{colour}]{facts['state']:<14}[/]"
        console.print(f"{start}  {facts['address'] or ''}", soft_wrap=True)
        pids = f"{_pids_in_words(facts['pids'])} · " if facts["pids"] else ""
        console.print(f"               [dim]{pids}{escape(facts['folder'])}[/]", soft_wrap=True)


def _full_name(name: str, brokers: int) -> str:
    if brokers == 1:
        return name
    if brokers != 3 or name not in ("kafka", "kafka-cluster"):
        raise typer.BadParameter(f"--brokers 3 is for kafka, and there is no other number: found {name} with {brokers}")
    return "kafka-cluster"


def _start(server: Server) -> float:
    """Seconds until it was ready. If only some of its processes run, they are stopped first."""
    began_s = time.monotonic()
    with _spinning(f"starting {server.name}"):
        server.restart()
    return round(time.monotonic() - began_s, 2)


@contextmanager
def _spinning(doing: str) -> Iterator[None]:
    """On a terminal only."""
    console = err()
    if not console.is_terminal:
        yield
        return
    with console.status(f"{doing} …"):
        yield


def _facts(server: Server) -> dict[str, Json]:
    """Asks nothing of a server that was never started: that would fetch its parts."""
    from tallystick.servers.registry import is_there

    there = is_there(server)
    pids = [process.pid for process in server.processes if process.pid is not None] if there else []
    state = "never started" if not there else "stopped" if not pids else "partly running"
    return {
        "name": server.name,
        "version": server.version if there else None,
        "state": "running" if there and server.running else state,
        "address": server.address if there else None,
        "pids": pids,
        "folder": str(server.folder),
    }


def _pids_in_words(pids: list[int]) -> str:
    return f"{'process' if len(pids) == 1 else 'processes'} {', '.join(map(str, pids))}"


def _folder_option(folder: Path | None) -> str:
    import shlex

    return f" --folder {shlex.quote(str(folder))}" if folder is not None else ""
