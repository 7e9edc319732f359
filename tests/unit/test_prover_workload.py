"""The workload and the schedule: everything follows from the seed, and nothing is numbered twice."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tallystick.errors import ConfigError, UnprovenError
from tallystick.killpoints import POINTS, WORKER_POINTS
from tallystick.prover.faults.draw import DECIDED, FAMILIES, Means, Schedule, draw
from tallystick.prover.faults.kill import KillAt
from tallystick.prover.faults.pause import Takeover
from tallystick.prover.rows import row_of
from tallystick.prover.workload import LANES, Numbered, Workload

EVERYTHING = Means(servers=("kafka",), proxied=("kafka",), executors=True, clock=True, small_disk=True, expires=True)


class TestWorkload:
    work = Workload(seed=3, epochs=7, per_epoch=12, keys=6)

    def test_every_number_is_there_once(self) -> None:
        numbers = [record.number for record in self.work.records(("a", "b"))]
        assert sorted(numbers) == list(range(2 * 7 * 12))

    def test_a_key_counts_its_records_without_a_gap_and_in_order(self) -> None:
        sequences = defaultdict(list)
        for record in self.work.records(("a",)):
            sequences[record.key].append(record.sequence)
        assert set(sequences) == self.work.all_keys()
        assert all(found == list(range(7 * 12 // 6)) for found in sequences.values())

    def test_a_key_stays_in_its_lane(self) -> None:
        lanes = {(self.work.record(index).key, self.work.lane(index)) for index in range(len(self.work))}
        assert len(lanes) == len(self.work.all_keys())

    def test_every_epoch_has_as_many_records_in_each_lane(self) -> None:
        for epoch in range(self.work.epochs):
            counted = Counter(self.work.lane(index) for index in self.work.epoch(epoch))
            assert counted == dict.fromkeys(range(LANES), 12 // LANES)

    def test_the_seed_decides(self) -> None:
        def keys(seed: int) -> list[str]:
            return [record.key for record in Workload(seed, 7, 12, 6).records(("a",))]

        assert keys(3) == keys(3)
        assert keys(3) != keys(4)

    def test_it_goes_through_json(self) -> None:
        assert Workload.from_json(self.work.to_json()) == self.work

    @pytest.mark.parametrize("wrong", [{"per_epoch": 7}, {"keys": 3}, {"epochs": 0}, {"per_epoch": 0}])
    def test_what_makes_no_work(self, wrong: dict[str, int]) -> None:
        with pytest.raises(ConfigError):
            Workload(**{"seed": 1, "epochs": 2, **wrong})


class TestRows:
    record = Numbered(17, "key_003", 4, "views")

    def row(self, *fields: StructField) -> dict[str, object]:
        return row_of(self.record, StructType(list(fields)))

    def test_the_first_whole_number_and_the_first_text(self) -> None:
        row = self.row(
            StructField("at", TimestampType()),
            StructField("app", StringType()),
            StructField("id", LongType()),
            StructField("page", StringType()),
            StructField("ms", DoubleType()),
        )
        assert (row["id"], row["app"], row["page"]) == (17, "key_003", "page-17")
        assert row["at"] is not None
        assert row["ms"] == 4.25

    def test_texts_alone_hold_the_number_too(self) -> None:
        assert self.row(StructField("a", StringType()), StructField("b", StringType())) == {
            "a": "key_003",
            "b": "number-00000017",
        }
        assert self.row(StructField("a", StringType()))["a"] == '{"number": 17, "key": "key_003", "sequence": 4}'

    def test_a_schema_without_room_for_a_number(self) -> None:
        with pytest.raises(UnprovenError, match="cannot be numbered") as caught:
            self.row(StructField("yes", BooleanType()))
        assert "prove_input" in caught.value.needed

    def test_a_type_that_is_not_filled_in(self) -> None:
        with pytest.raises(UnprovenError, match="column 'tags' of source 'views' is of type array<string>"):
            self.row(StructField("id", LongType()), StructField("tags", ArrayType(StringType())))


class TestSchedules:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_same_seed_draws_the_same_and_it_goes_through_json(self, family: str) -> None:
        drawn = draw(5, family, 6, EVERYTHING)
        assert drawn == draw(5, family, 6, EVERYTHING)
        assert drawn != draw(6, family, 6, EVERYTHING)
        assert Schedule.from_json(drawn.to_json()) == drawn
        assert len(drawn.lives) == 6

    def test_every_kill_point_comes_before_any_comes_again(self) -> None:
        for seed in range(50):
            lives = draw(seed, "kill-points", len(POINTS) + 1, Means(), workers=2).lives
            whole = [life[-1].point for life in lives if isinstance(life[-1], KillAt)]
            assert set(whole) >= set(POINTS) - {"after-fence"}
            assert "after-fence" not in whole[:1], "the first driver has nobody to fence"

    def test_kills_come_in_the_order_of_epochs(self) -> None:
        """A whole job is killed in an epoch of its own, unless it is to die while it fences the one before."""
        for seed in range(50):
            epoch, before = 0, ""
            for life in draw(seed, "kill-points", 12, Means(), workers=3).lives:
                *workers, last = [fault for fault in life if isinstance(fault, KillAt)]
                assert all(kill.worker and kill.point in WORKER_POINTS for kill in workers)
                if last.point == "after-fence":
                    assert not workers
                    assert last.epoch == epoch + (before in DECIDED)
                else:
                    assert epoch < min(kill.epoch for kill in workers)
                    assert max(kill.epoch for kill in workers) < last.epoch
                epoch, before = last.epoch, last.point

    def test_on_a_cluster_executors_die_at_points_too(self) -> None:
        lives = draw(3, "kill-points", 12, Means(executors=True), workers=5).lives
        early = [fault for life in lives for fault in life[:-1] if isinstance(fault, KillAt)]
        assert {fault.point for fault in early if fault.executor} == set(WORKER_POINTS)
        assert all(fault.executor is not fault.worker for fault in early)
        assert any(fault.worker for fault in early)

    def test_there_is_work_left_after_the_last_kill(self) -> None:
        for seed in range(50):
            drawn = draw(seed, "kill-points", 9, Means(), workers=5)
            assert (
                max(fault.epoch for life in drawn.lives for fault in life if isinstance(fault, KillAt))
                < drawn.epochs - 2
            )

    def test_a_takeover_is_the_end(self) -> None:
        """The second driver works to the end of the input: nothing is left for later lives."""
        for family in ("random", "all"):
            for seed in range(100):
                *early, _ = draw(seed, family, 5, EVERYTHING).lives
                assert not any(isinstance(fault, Takeover) for life in early for fault in life)

    @pytest.mark.parametrize("family", ["servers", "network"])
    def test_without_servers_there_is_nothing_to_disturb(self, family: str) -> None:
        with pytest.raises(UnprovenError, match="talks to no server"):
            draw(1, family, 3, Means())

    def test_an_unknown_family(self) -> None:
        with pytest.raises(ConfigError, match="there are no faults called 'gremlins': needed one of kill-points"):
            draw(1, "gremlins", 3, Means())
