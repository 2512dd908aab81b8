"""What counts as slow is work, not waiting."""

from __future__ import annotations

import time

from thalweg.structured.pace import Pace


def work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_work_beyond_the_limit_is_told_with_its_seconds() -> None:
    pace = Pace(0.01)
    work(0.03)
    assert 0.03 <= pace.lap() < 1


def test_waiting_is_not_work() -> None:
    pace = Pace(0.01)
    time.sleep(0.03)
    assert pace.lap() == 0


def test_every_lap_is_judged_by_itself() -> None:
    pace = Pace(0.02)
    work(0.01)
    assert pace.lap() == 0
    work(0.05)
    first = pace.lap()
    assert first > 0.02
    time.sleep(0.03)
    assert pace.lap() == 0
    work(0.05)
    assert pace.lap() > 0.02
