"""A job that is wrong on purpose: five outputs, four of them with a sink that is broken in a way of its own."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import tallystick as ts
from tallystick.records import Json, Outcome
from tallystick.sinks.files.transaction import Transaction

HERE = Path(__file__).parent / "never-written"


class PublishesEarly(ts.sinks.Files):
    """Broken: rows are visible as soon as they are staged, whatever is decided about them."""

    def pre_commit(self, transaction: Transaction[Path]) -> Json:
        committable = super().pre_commit(transaction)
        super().commit_all([committable], recovering=False)
        return committable


class PublishesTwice(ts.sinks.Files):
    """Broken: a commit that is repeated after a restart publishes again."""

    def commit_all(self, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        outcomes = super().commit_all(committables, recovering)
        for _, final in (pair for committable in committables for pair in committable["files"]):
            if recovering:
                shutil.copy(self.path / final, self.path / f"again-{final}")
        return outcomes


class PublishesHalf(ts.sinks.Files):
    """Broken: after a restart it commits one slice and says that it committed all."""

    def commit_all(self, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        if not recovering:
            return super().commit_all(committables, recovering)
        super().commit_all(committables[:1], recovering)
        return [Outcome.COMMITTED for _ in committables]


class PublishesScraps(ts.sinks.Files):
    """Broken: what is rolled back leaves half a line where readers look."""

    def abort(self, committable: Json) -> None:
        for path in self.staging.locate(committable["dir"]).glob("*.staged"):
            (self.path / f"scrap-{path.parent.name}.json").write_text(path.read_text()[:17] + "\n")
        super().abort(committable)


job = ts.Job(
    "wrong-on-purpose",
    source=ts.sources.Collection([{"id": 1, "app": "a"}]),
    sink=[
        ts.Output(ts.sinks.Files(HERE / "right", format="json"), "right"),
        ts.Output(PublishesEarly(HERE / "early", format="json"), "early"),
        ts.Output(PublishesTwice(HERE / "twice", format="json"), "twice"),
        ts.Output(PublishesHalf(HERE / "half", format="json"), "half"),
        ts.Output(PublishesScraps(HERE / "scraps", format="json"), "scraps"),
    ],
    checkpoint=ts.Checkpoint(HERE / "checkpoint", interval="0s"),
)
