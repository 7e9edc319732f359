"""A server that cannot start skips its tests here, and fails them where somebody relies on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from real_servers import Elsewhere, elsewhere, started
from tallystick.errors import SetupError
from tallystick.servers import Server
from tallystick.servers.process import Program


class Broken(Server):
    name = "broken"

    @property
    def address(self) -> str:
        return "nowhere"

    def prepare(self) -> None:
        raise SetupError("it is broken")

    def programs(self) -> Sequence[Program]:
        return []

    def ready(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def a_persons_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "TALLYSTICK_REQUIRE_SERVERS", "TALLYSTICK_TEST_KAFKA"):
        monkeypatch.delenv(name, raising=False)


def test_it_skips_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="no broken: it is broken"), started(Broken(tmp_path)):
        pytest.fail("it did not start")


@pytest.mark.parametrize("name", ["CI", "TALLYSTICK_REQUIRE_SERVERS"])
def test_it_fails_where_it_is_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(SetupError, match="it is broken"), started(Broken(tmp_path)):
        pytest.fail("it did not start")


def test_one_that_runs_elsewhere_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert elsewhere("kafka") is None
    monkeypatch.setenv("TALLYSTICK_TEST_KAFKA", "127.0.0.1:9092")
    assert elsewhere("kafka") == Elsewhere("127.0.0.1:9092")
