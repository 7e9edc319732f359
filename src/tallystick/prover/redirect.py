"""A copy of the user's job that reads the workload and writes to the prover's own places.

What is replaced: where sources read and how much of it makes an epoch, where sinks write, the checkpoint's location,
and the addresses and credentials of servers. What stays: the steps, schemas, formats, output mode, delivery mode,
restart strategy, Spark settings, and the sinks' own classes and options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tallystick.checkpoint import Checkpoint
from tallystick.prover.feeds import Feed, Rows, feed_for
from tallystick.prover.hooks import Hooks
from tallystick.prover.place import Place
from tallystick.prover.readers import Reader, reader_for
from tallystick.prover.workload import Workload
from tallystick.records import Mode
from tallystick.sinks.base import Sink
from tallystick.sinks.files import Files
from tallystick.sources.base import Source
from tallystick.spark.job import Job
from tallystick.spark.outputs import Output
from tallystick.spark.slice_writer import DEAD_LETTERS


@dataclass(frozen=True)
class Subject:
    """The job under proof, as its author declared it."""

    job: Job
    hooks: Hooks

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self.job.sources)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(output.name for output in self.job.outputs)

    def feeds(self) -> dict[str, type[Feed]]:
        """`UnprovenError` if a source cannot be fed."""
        return {name: feed_for(source) for name, source in self.job.sources.items()}

    def readers(self) -> dict[str, type[Reader]]:
        """By output, and where several look at one, by its name and who looks. `UnprovenError` if one cannot be read
        back."""
        return {name: reader for name, (reader, _) in _looked_at(self._declared).items()}

    def latest_only(self) -> dict[str, bool]:
        """For each reader, whether later rows replace earlier ones. `UnprovenError` if that cannot be judged."""
        return {name: reader.latest_only(sink) for name, (reader, sink) in _looked_at(self._declared).items()}

    def servers(self, disturbed: bool = False) -> tuple[str, ...]:
        """The kinds of servers that a proof needs; with ``disturbed`` only those that the job talks to."""
        feeds = [feed for feed in self.feeds().values() if not (disturbed and feed.only_fills)]
        needed = [kind for feed in feeds for kind in feed.servers]
        needed += [kind for reader in self.readers().values() for kind in reader.servers]
        return tuple(dict.fromkeys(needed))

    def notes(self) -> tuple[str, ...]:
        """What a verdict about this job is about, where that has to be said."""
        sources = [f"source {name}: {feed.proves}" for name, feed in self.feeds().items() if feed.proves]
        return (*sources, *(f"output {name}: {eyes.proves}" for name, eyes in self.readers().items() if eyes.proves))

    def promises(self) -> dict[str, Mode]:
        """What readers must see that are not bound to the job's own promise."""
        return {name: eyes.promise for name, eyes in self.readers().items() if eyes.promise is not None}

    def sinks(self, place: Place) -> dict[str, Sink]:
        """The redirected sinks, by output."""
        return {name: reader_for(sink).redirect(sink, name, place) for name, sink in self._declared.items()}

    def opened(self, place: Place) -> dict[str, Reader]:
        """Fresh readers of everything."""
        return {name: reader(sink, place) for name, (reader, sink) in _looked_at(self.sinks(place)).items()}

    def prepare(self, workload: Workload, place: Place) -> None:
        """Once for every run, before its first life: make what sources and sinks need to find."""
        for name, feed in self.feeds().items():
            feed.begin(self.job.sources[name], self._rows(name, workload), place)
        for sink in self.sinks(place).values():
            reader_for(sink).prepare(sink, place)

    def conclude(self, place: Place) -> None:
        """Once for every run, after its last reading."""
        for sink in self.sinks(place).values():
            reader_for(sink).conclude(sink, place)

    @property
    def _declared(self) -> dict[str, Sink]:
        return {output.name: output.sink for output in self.job.outputs}

    def redirected(self, workload: Workload, place: Place, pace_s: float | None = None) -> Job:
        """In a process with a Spark session. ``pace_s`` is the time from one epoch to the next, if not the job's."""
        sinks = self.sinks(place)
        return Job(
            self.job.name,
            source={name: self._source(name, source, workload, place) for name, source in self.job.sources.items()},
            sink=[Output(sinks[one.name], one.name, one.where, one.select) for one in self.job.outputs],
            checkpoint=self._checkpoint(place, pace_s),
            steps=self.job.steps,
            broadcast=self.job.broadcasts,
            output_mode=self.job.output_mode,
            restart=self.job.restart,
            guarantee=self.job.mode.value,
            spark_conf=self.job.spark_conf,
            dead_letters=None if self.job.dead_letters is None else Files(place.output(DEAD_LETTERS)),
        )

    def fill(self, workload: Workload, place: Place) -> None:
        """Put the workload into every source's input. Once per campaign; in a process with a Spark session."""
        for name, feed in self.feeds().items():
            feed.fill(self.job.sources[name], self._rows(name, workload), place)

    def _checkpoint(self, place: Place, pace_s: float | None) -> Checkpoint:
        moved = replace(self.job.checkpoint, location=place.checkpoint)
        if pace_s is not None:
            moved = replace(moved, interval=f"{round(pace_s * 1000)}ms")
        return moved if place.timeout_s is None else replace(moved, interval="0s", timeout=f"{place.timeout_s:g}s")

    def _source(self, name: str, source: Source, workload: Workload, place: Place) -> Source:
        return feed_for(source).redirect(source, self._rows(name, workload), place)

    def _rows(self, name: str, workload: Workload) -> Rows:
        return Rows(workload, name, self.sources, self.hooks.made)


def _looked_at(sinks: Mapping[str, Sink]) -> dict[str, tuple[type[Reader], Sink]]:
    """Who looks at which sink. The names of several who look at the same one say how they do it."""
    found: dict[str, tuple[type[Reader], Sink]] = {}
    for name, sink in sinks.items():
        reader = reader_for(sink)
        found[name] = reader, sink
        found |= {f"{name}, {how}": (other, sink) for how, other in reader.beside.items()}
    return found
