"""``tallystick demo``, as a person runs it: real kills in all three modes, and the JSON that was promised."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


def test_the_demo_shows_what_each_mode_promises() -> None:
    command = [sys.executable, "-m", "tallystick", "demo", "--kills", "1", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    shown = json.loads(ended.stdout.splitlines()[-1])
    exact, at_least, at_most = (shown["modes"][mode] for mode in ("exactly-once", "at-least-once", "at-most-once"))
    assert [mode["kills"] for mode in (exact, at_least, at_most)] == [1, 1, 1]
    assert (exact["lost"], exact["repeated"], exact["delivered"]) == (0, 0, exact["expected"])
    assert at_least["lost"] == 0
    assert at_least["repeated"] > 0
    assert at_most["lost"] > 0
    assert at_most["repeated"] == 0
    assert shown["checkpoint"].startswith("chk-3  offset (0,1000)  pv (app1,")
