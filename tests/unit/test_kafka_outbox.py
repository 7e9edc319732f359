"""Batches of one partition against a broker that takes them by their sequence numbers, and loses answers."""

from __future__ import annotations

import random
from collections import deque

import pytest

from tallystick.sinks.kafka.outbox import UNDER_WAY_MAX, Batch, Outbox


def batch(number: int) -> Batch:
    return Batch(("t", 0), b"%d" % number, 1, None, 1)


def send_next(outbox: Outbox) -> Batch:
    one = outbox.next()
    assert one is not None
    outbox.sent(one)
    return one


def test_in_order_and_five_at_the_most() -> None:
    outbox = Outbox()
    for number in range(8):
        outbox.put(batch(number))
    sent = []
    while (one := outbox.next()) is not None:
        outbox.sent(one)
        sent.append(one)
    assert [one.data for one in sent] == [b"%d" % number for number in range(UNDER_WAY_MAX)]
    outbox.acknowledged(sent[0])
    following = outbox.next()
    assert following is not None
    assert following.data == b"5"
    assert outbox.sequence == 8


def test_after_a_failure_all_that_is_not_taken_goes_again_and_nothing_before_that() -> None:
    outbox = Outbox()
    for number in range(4):
        outbox.put(batch(number))
    first, second, third = (send_next(outbox) for _ in range(3))
    outbox.failed(first)
    assert outbox.is_first(first)
    assert not outbox.is_first(second)
    assert outbox.next() is None, "two are still under way"
    outbox.acknowledged(second)
    assert outbox.next() is None
    outbox.failed(third)
    again = []
    while (one := outbox.next()) is not None:
        outbox.sent(one)
        again.append(one.data)
    assert again == [b"0", b"2", b"3"]


class Broker:
    """Takes what comes next, knows what it took, and refuses anything else."""

    def __init__(self) -> None:
        self.log: list[int] = []

    def take(self, number: int) -> str:
        if number < len(self.log):
            return "taken before"
        if number > len(self.log):
            return "out of order"
        self.log.append(number)
        return "taken"


@pytest.mark.parametrize("seed", range(200))
def test_every_batch_arrives_once_and_in_order_whatever_is_lost(seed: int) -> None:
    draw, broker, outbox = random.Random(seed), Broker(), Outbox(draw_most(seed))
    count, put = 40, 0
    wire: deque[Batch] = deque()
    for _ in range(5000):
        if put < count and draw.random() < 0.4:
            outbox.put(batch(put))
            put += 1
        one = outbox.next()
        if one is not None and draw.random() < 0.7:
            outbox.sent(one)
            wire.append(one)
        if wire and draw.random() < 0.6:
            answered = wire.popleft()
            arrived = draw.random() > 0.15
            said = broker.take(int(answered.data)) if arrived else "lost on the way"
            if said.startswith("taken") and draw.random() > 0.15:
                outbox.acknowledged(answered)
            else:
                assert said != "out of order" or not outbox.is_first(answered), "what it follows is not taken yet"
                outbox.failed(answered)
        if put == count and not len(outbox):
            break
    assert not len(outbox), f"seed {seed}: it does not come to an end"
    assert broker.log == list(range(count))


def draw_most(seed: int) -> int:
    return 1 + seed % UNDER_WAY_MAX
