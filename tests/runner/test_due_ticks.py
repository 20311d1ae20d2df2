"""Ticks of any schedule, walked in both directions; which of them are due, and which were missed."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_service.runner.schedule import END, MOST_TICKS, PUNCTUAL, Cron, Every, Missed, Schedule, due_ticks
from tests.runner.schedules import CHANGES, DAY, at, crons


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Return any schedule."""
    if draw(st.booleans()):
        return Every(draw(st.floats(1, 10 * DAY) | st.integers(1, 10 * DAY)))
    return draw(crons())[0]


def moments() -> st.SearchStrategy[float]:
    """Return times near clock changes, and others."""
    changes = sorted({at(change) for some in CHANGES.values() for change in some})
    near = st.builds(lambda change, by: change + by, st.sampled_from(changes), st.floats(-DAY, DAY))
    exactly = st.builds(lambda change, by: change + 60.0 * by, st.sampled_from(changes), st.integers(-90, 90))
    return near | exactly | st.floats(-2.0 * DAY, 4e9)


# All schedules


@given(schedule=schedules(), moment=moments())
@settings(max_examples=100, deadline=None)
def test_the_next_tick_is_later_and_no_tick_lies_between_it_and_the_previous_one(
    schedule: Schedule, moment: float
) -> None:
    after, before = schedule.next_after(moment), schedule.previous_at(moment)
    assert moment < after < math.inf
    assert schedule.previous_at(after) == after
    assert schedule.previous_at(math.nextafter(after, -math.inf)) == before
    if before is None:
        assert schedule.next_after(-math.inf) == after
    else:
        assert before <= moment
        assert schedule.next_after(before) == after


@pytest.mark.parametrize("schedule", [Every(300), Cron("*/5 * * * *"), Cron("0 4 * * *", "Europe/Berlin")])
def test_schedules_tick_from_the_epoch_until_their_end(schedule: Schedule) -> None:
    first = schedule.next_after(-math.inf)
    assert 0 <= first < DAY
    assert schedule.previous_at(math.nextafter(first, -1)) is None
    assert schedule.previous_at(-math.inf) is None
    last = schedule.previous_at(math.inf)
    assert last is not None
    assert END - DAY < last <= END
    assert schedule.next_after(last) == schedule.next_after(END) == schedule.next_after(math.inf) == math.inf


NOON = at("2026-06-01T12:00")
HOURLY = Every(3600)


# What is due


@pytest.mark.parametrize(
    ("missed", "late", "due"),
    [
        (Missed.SKIP, 1.0, [4]),
        (Missed.SKIP, PUNCTUAL, [4]),
        (Missed.SKIP, PUNCTUAL + 1, []),
        (Missed.ONCE, 1.0, [4]),
        (Missed.ONCE, 3599.0, [4]),
        (Missed.ALL, 1.0, [1, 2, 3, 4]),
        (Missed.ALL, 3599.0, [1, 2, 3, 4]),
    ],
)
def test_missed_ticks_are_dropped_or_made_up_for_once_or_all(missed: Missed, late: float, due: list[int]) -> None:
    now = NOON + 4 * 3600 + late
    assert due_ticks(HOURLY, NOON, now, missed) == [NOON + 3600 * hour for hour in due]


def test_many_missed_ticks_come_in_bounded_calls_the_oldest_first() -> None:
    now = NOON + 2500
    calls = []
    last = NOON
    while due := due_ticks(Every(1), last, now, Missed.ALL):
        calls.append(due)
        last = due[-1]
    assert [len(due) for due in calls] == [MOST_TICKS, MOST_TICKS, 500]
    assert [tick for due in calls for tick in due] == [NOON + 1 + tick for tick in range(2500)]


@pytest.mark.unmeasured
@given(
    schedule=schedules(),
    start=moments(),
    jumps=st.lists(st.floats(-DAY, DAY), max_size=10),
    missed=st.sampled_from(Missed),
)
@settings(max_examples=60, deadline=None)
def test_no_tick_comes_again_or_early_however_the_clock_jumps(
    schedule: Schedule, start: float, jumps: list[float], missed: Missed
) -> None:
    walked: list[float] = []
    now = last = start
    for jump in jumps:
        now += jump
        due = due_ticks(schedule, last, now, missed)
        assert all(tick <= now for tick in due)
        walked += due
        last = due[-1] if due else last
    assert all(one < other for one, other in pairwise([start, *walked]))
    assert all(schedule.previous_at(tick) == tick for tick in walked)
