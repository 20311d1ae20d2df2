"""When periodic jobs tick: fixed periods, cron expressions where clocks are changed, and what is due."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs_service import InvalidJob
from jobs_service.runner.schedule import END, LONGEST, Cron, Every, parse_every
from tests.runner.schedules import CHANGES, DAY, at, crons, ticks

FEW = settings(max_examples=40, deadline=None)


def local(schedule: Cron, begin: str, end: str) -> list[str]:
    """Return the ticks of a stretch of time as clocks show them, with the clocks' offset."""
    zone = ZoneInfo(str(schedule.timezone))
    return [datetime.fromtimestamp(tick, zone).strftime("%H:%M%z") for tick in ticks(schedule, at(begin), at(end))]


def expected(zone: ZoneInfo, begin: int, end: int, parts: tuple[set[int], set[int], set[int]]) -> Iterator[float]:
    """Go through every minute of a stretch of time as somebody who looks at a clock, and tell when it is to tick."""
    minutes, hours, weekdays = parts

    def matches(wall: datetime) -> bool:
        return wall.minute in minutes and wall.hour in hours and wall.weekday() in weekdays

    latest = datetime.fromtimestamp(begin, zone).replace(tzinfo=None)
    for moment in range(begin + 60, end + 1, 60):
        wall = datetime.fromtimestamp(moment, zone).replace(tzinfo=None)
        if len(hours) == 24:
            due = matches(wall)
        else:
            passed = int((wall - latest) / timedelta(minutes=1))
            due = any(matches(latest + timedelta(minutes=step)) for step in range(1, passed + 1))
        latest = max(latest, wall)
        if due:
            yield float(moment)


# Periods


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("5m", 300.0),
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("2d", 172_800.0),
        ("1d1h1m1.5s", 90_061.5),
        ("90", 90.0),
        ("1.5", 1.5),
        (90, 90.0),
        (1, 1.0),
        (1.25, 1.25),
        (timedelta(minutes=5), 300.0),
        (timedelta(milliseconds=1500), 1.5),
        ("36500d", LONGEST),
    ],
)
def test_a_period_is_read_from_text_number_or_timedelta(value: Any, seconds: float) -> None:
    parsed = parse_every(value)
    assert parsed == seconds
    assert type(parsed) is float


BAD_PERIODS: list[Any] = [
    *(0, -1, 0.999, math.inf, -math.inf, math.nan, 10**400, LONGEST * 1.001, True, False, None, [], {}, b"5m", 1j),
    *("", " ", "0", "0s", "0.5s", "-5m", "5 m", " 5m", "5m\n", "5M", "5x", "m", "1m1h", "5m5m", "1.5h", "1e3", "inf"),
    *("nan", "٥m", "36501d", "9" * 5000, "9" * 5000 + "d", "\ud800"),
    *(timedelta(0), timedelta(seconds=-5), timedelta(milliseconds=999), timedelta.max),
]


@pytest.mark.parametrize("value", BAD_PERIODS, ids=range(len(BAD_PERIODS)))
def test_what_is_no_period_is_refused_in_one_line_that_says_what_is_allowed(value: Any) -> None:
    with pytest.raises(
        InvalidJob, match=r"^period=.+: allowed are durations from 1 to 3153600000 s, such as 90, "
    ) as refused:
        parse_every(value)
    assert str(refused.value).isprintable()
    with pytest.raises(InvalidJob):
        Every(value)


@pytest.mark.parametrize(
    ("nickname", "expression"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@Midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * SUN"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_a_nickname_is_the_expression_that_crontab_says_it_is(nickname: str, expression: str) -> None:
    now = 1_790_000_000.0
    assert Cron(nickname).next_after(now) == Cron(expression).next_after(now)


@given(seconds=st.floats(1, 1e6), multiple=st.integers(0, 10**5))
@FEW
def test_the_ticks_of_any_period_are_its_multiples(seconds: float, multiple: int) -> None:
    every = Every(seconds)
    tick = multiple * seconds
    assert every.previous_at(tick) == tick
    assert every.next_after(tick) == (multiple + 1) * seconds
    assert every.next_after(math.nextafter(tick, -math.inf)) == tick


# Cron expressions


@pytest.mark.parametrize(
    ("expression", "zone", "after", "tick"),
    [
        ("0 3 * * *", "UTC", "2026-01-01T03:00", "2026-01-02T03:00"),
        ("0 3 * * *", "UTC", "2026-01-01T02:59:59.999", "2026-01-01T03:00"),
        ("0 3 * * *", "Europe/Berlin", "2026-01-01T00:00", "2026-01-01T02:00"),
        ("0 3 * * *", "Europe/Berlin", "2026-07-01T00:00", "2026-07-01T01:00"),
        ("0 3 * * *", "Asia/Kolkata", "2026-01-01T00:00", "2026-01-01T21:30"),
        ("0 * * * *", "Asia/Kolkata", "2026-01-01T00:00", "2026-01-01T00:30"),
        ("*/15 * * * *", "UTC", "2026-01-01T00:14", "2026-01-01T00:15"),
        ("*/10 * * * * *", "UTC", "2026-01-01T00:00:01", "2026-01-01T00:00:10"),
        ("0 0 1 jan *", "UTC", "2026-01-01T00:00", "2027-01-01T00:00"),
        ("0 0 29 2 *", "UTC", "2096-03-01T00:00", "2104-02-29T00:00"),
        ("0 0 L * *", "UTC", "2028-02-01T00:00", "2028-02-29T00:00"),
        ("0 9 * * MON#1", "America/New_York", "2026-09-01T00:00", "2026-09-07T13:00"),
    ],
)
def test_a_cron_expression_ticks_at_the_zones_times_of_day(expression: str, zone: str, after: str, tick: str) -> None:
    cron = Cron(expression, zone)
    assert cron.next_after(at(after)) == at(tick)
    assert cron.previous_at(at(tick)) == at(tick)
    assert cron.previous_at(at(tick) + 0.5) == at(tick)


BERLIN_FORWARD = ("2026-03-28T23:30", "2026-03-29T02:30")
BERLIN_BACK = ("2026-10-24T23:30", "2026-10-25T02:30")
NEW_YORK_FORWARD = ("2026-03-08T05:30", "2026-03-08T08:30")
NEW_YORK_BACK = ("2026-11-01T04:30", "2026-11-01T07:30")
LORD_HOWE_BACK = ("2026-04-04T13:45", "2026-04-04T16:15")
LORD_HOWE_FORWARD = ("2026-10-03T14:30", "2026-10-03T17:15")


@pytest.mark.parametrize(
    ("expression", "zone", "stretch", "shown"),
    [
        # 02:00 to 03:00 is skipped: what names hours ticks as it is skipped, once; what goes every hour goes on.
        ("30 2 * * *", "Europe/Berlin", BERLIN_FORWARD, ["03:00+0200"]),
        ("0,30 2 * * *", "Europe/Berlin", BERLIN_FORWARD, ["03:00+0200"]),
        ("0 2,3 * * *", "Europe/Berlin", BERLIN_FORWARD, ["03:00+0200"]),
        ("*/20 2 * * *", "Europe/Berlin", BERLIN_FORWARD, ["03:00+0200"]),
        ("15 30 2 * * *", "Europe/Berlin", BERLIN_FORWARD, ["03:00+0200"]),
        ("30 */2 * * *", "Europe/Berlin", BERLIN_FORWARD, ["03:00+0200", "04:30+0200"]),
        ("30 1,3 * * *", "Europe/Berlin", BERLIN_FORWARD, ["01:30+0100", "03:30+0200"]),
        ("30 * * * *", "Europe/Berlin", BERLIN_FORWARD, ["01:30+0100", "03:30+0200", "04:30+0200"]),
        ("30 0-23 * * *", "Europe/Berlin", BERLIN_FORWARD, ["01:30+0100", "03:30+0200", "04:30+0200"]),
        ("30 2 * * *", "America/New_York", NEW_YORK_FORWARD, ["03:00-0400"]),
        ("0 * * * *", "America/New_York", NEW_YORK_FORWARD, ["01:00-0500", "03:00-0400", "04:00-0400"]),
        # 02:00 to 03:00 is repeated (in New York 01:00 to 02:00): the first time, or both.
        ("30 2 * * *", "Europe/Berlin", BERLIN_BACK, ["02:30+0200"]),
        ("*/30 2 * * *", "Europe/Berlin", BERLIN_BACK, ["02:00+0200", "02:30+0200"]),
        ("0 2,3 * * *", "Europe/Berlin", BERLIN_BACK, ["02:00+0200", "03:00+0100"]),
        ("30 * * * *", "Europe/Berlin", BERLIN_BACK, ["02:30+0200", "02:30+0100", "03:30+0100"]),
        ("30 1 * * *", "America/New_York", NEW_YORK_BACK, ["01:30-0400"]),
        ("0 * * * *", "America/New_York", NEW_YORK_BACK, ["01:00-0400", "01:00-0500", "02:00-0500"]),
        # Half an hour, 01:30 to 02:00 repeated, 02:00 to 02:30 skipped.
        ("45 1 * * *", "Australia/Lord_Howe", LORD_HOWE_BACK, ["01:45+1100"]),
        (
            "*/15 2 * * *",
            "Australia/Lord_Howe",
            LORD_HOWE_BACK,
            ["02:00+1030", "02:15+1030", "02:30+1030", "02:45+1030"],
        ),
        ("45 * * * *", "Australia/Lord_Howe", LORD_HOWE_BACK, ["01:45+1100", "01:45+1030", "02:45+1030"]),
        ("15 2 * * *", "Australia/Lord_Howe", LORD_HOWE_FORWARD, ["02:30+1100"]),
        ("*/15 2 * * *", "Australia/Lord_Howe", LORD_HOWE_FORWARD, ["02:30+1100", "02:45+1100"]),
        ("15 * * * *", "Australia/Lord_Howe", LORD_HOWE_FORWARD, ["01:15+1030", "03:15+1100", "04:15+1100"]),
        # Seen for the first time in the repeated hour.
        ("30 2 * * *", "Europe/Berlin", ("2026-10-25T01:05", "2026-10-26T02:00"), ["02:30+0100"]),
        # The last hour of the only day of the year.
        ("30 * 17 2 *", "America/Sao_Paulo", ("2018-02-18T01:00", "2018-12-01"), ["23:30-0200", "23:30-0300"]),
        ("30 23 17 2 *", "America/Sao_Paulo", ("2018-02-18T01:00", "2018-12-01"), ["23:30-0200"]),
        # A midnight that does not exist, and one that is there twice.
        ("0 0 * * *", "America/Havana", ("2026-03-08T04:00", "2026-03-08T07:00"), ["01:00-0400"]),
        ("0 0 * * *", "America/Havana", ("2026-11-01T03:30", "2026-11-01T07:00"), ["00:00-0400"]),
    ],
)
def test_no_tick_is_lost_or_doubled_where_clocks_are_changed(
    expression: str, zone: str, stretch: tuple[str, str], shown: list[str]
) -> None:
    cron = Cron(expression, zone)
    assert local(cron, *stretch) == shown
    found = ticks(cron, at(stretch[0]), at(stretch[1]))
    assert [cron.previous_at(tick) for tick in found] == found
    assert [cron.previous_at(tick - 1) for tick in found[1:]] == found[:-1]


@pytest.mark.unmeasured
@given(cron=crons(), data=st.data())
@FEW
def test_a_cron_expression_ticks_as_somebody_does_who_looks_at_the_clock_every_minute(
    cron: tuple[Cron, set[int], set[int], set[int]], data: st.DataObject
) -> None:
    schedule, *parts = cron
    zone = str(schedule.timezone)
    change = int(at(data.draw(st.sampled_from(CHANGES[zone]))))
    begin, end = change - DAY // 2, change + DAY
    minutes, hours, weekdays = parts
    right = list(expected(ZoneInfo(zone), begin, end, (minutes, hours, weekdays)))
    assert ticks(schedule, begin, end) == right

    moment = begin + data.draw(st.floats(0, end - begin))
    assert schedule.next_after(moment) == min((t for t in right if t > moment), default=schedule.next_after(end))
    assert schedule.previous_at(moment) == max((t for t in right if t <= moment), default=schedule.previous_at(begin))


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "wrong number of fields"),
        ("* * * *", "wrong number of fields"),
        ("* * * * * * *", "wrong number of fields"),
        ("@reboot", "wrong number of fields"),
        ("60 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 0 * *", "bad day-of-month"),
        ("* * * 13 *", "bad month"),
        ("* * * * 8", "bad day-of-week"),
        ("60 * * * * *", "bad second"),
        ("*/0 * * * *", "bad minute"),
        ("5-1 * * * *", "bad minute"),
        ("٣ * * * *", "bad minute"),
        ("-1 * * * *", "bad minute"),
        ("1,,2 * * * *", "bad minute"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 */10 2 MON#5", "it never ticks"),
        ("0," * 600 + "0 * * * *", "longer than 1000 characters"),
        (None, "a NoneType is no text"),
        (b"0 3 * * *", "a bytes is no text"),
        (5, "an int is no text"),
    ],
)
def test_a_bad_expression_is_refused_in_one_line_that_names_the_field(expression: Any, why: str) -> None:
    with pytest.raises(InvalidJob, match=rf"^cron expression .+: {why}; write minute, hour, .* '0 3 .*'") as refused:
        Cron(expression)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "zone",
    [
        "",
        "Europe",
        "Europe/Nowhere",
        "europe/berlin ",
        "../UTC",
        "/etc/localtime",
        "a\0b",
        "x" * 5000,
        "\ud800",
        None,
        2,
    ],
    ids=range(11),
)
def test_an_unknown_time_zone_is_refused_in_one_line(zone: Any) -> None:
    with pytest.raises(
        InvalidJob, match=r"^time zone .+: there is none .* such as 'Europe/Berlin' or 'UTC'$"
    ) as refused:
        Cron("* * * * *", zone)
    assert str(refused.value).isprintable()


@given(expression=st.text(alphabet="0123456789*/,-#L MONJULW\n²", max_size=30))
@example("1#1/2 * * * *")
@example("* * * * 5L/2")
@example("* * L/2 * *")
@example("* * * * " + "9" * 900)
@FEW
def test_any_text_is_a_cron_expression_that_ticks_or_is_refused(expression: str) -> None:
    try:
        cron = Cron(expression)
    except InvalidJob:
        return
    assert 0 < cron.next_after(0) < END
