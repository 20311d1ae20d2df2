"""Times and schedules, for the tests of schedules."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st

from jobs_service.runner.schedule import Cron, Schedule

DAY = 86_400
CHANGES = {
    "Europe/Berlin": ["2026-03-29T01:00", "2026-10-25T01:00"],
    "America/New_York": ["2026-03-08T07:00", "2026-11-01T06:00"],
    "Australia/Lord_Howe": ["2026-04-04T15:00", "2026-10-03T15:30"],  # by half an hour, between two half hours
    "America/Havana": ["2026-03-08T05:00", "2026-11-01T05:00"],  # skips midnight, repeats the hour after it
    "Pacific/Apia": ["2011-12-30T10:00"],  # skips a whole day
    "Asia/Kolkata": ["2026-03-29T01:00"],  # five hours and a half ahead, never changed
    "UTC": ["2026-03-29T01:00"],
}
"""Times, in UTC, around which the clocks of each zone are looked at."""


def at(text: str) -> float:
    """Return the seconds since the epoch of a time; UTC when it names no offset."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def ticks(schedule: Schedule, begin: float, end: float) -> list[float]:
    """Return the ticks later than `begin`, up to `end`."""
    found = []
    tick = schedule.next_after(begin)
    while tick <= end:
        found.append(tick)
        tick = schedule.next_after(tick)
    return found


@st.composite
def crons(draw: st.DrawFn) -> tuple[Cron, set[int], set[int], set[int]]:
    """Return an expression in some zone, with its minutes, hours and days of the week (Monday is 0)."""
    minutes = draw(st.sets(st.sampled_from([0, 1, 15, 29, 30, 31, 59]), min_size=1))
    hours = draw(st.just(set(range(24))) | st.sets(st.sampled_from([0, 1, 2, 3, 23]), min_size=1))
    weekdays = draw(st.just(set(range(7))) | st.sets(st.sampled_from([4, 5, 6]), min_size=1))
    named = [",".join(map(str, sorted(some))) for some in (minutes, hours, {day + 1 for day in weekdays})]
    hour = "*" if len(hours) == 24 and draw(st.booleans()) else named[1]
    zone = draw(st.sampled_from(sorted(CHANGES)))
    return Cron(f"{named[0]} {hour} * * {named[2]}", zone), minutes, hours, weekdays
