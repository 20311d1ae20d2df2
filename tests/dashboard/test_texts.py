"""Words for times, durations, numbers and JSON."""

import pytest

from jobs_service.dashboard import rendering
from jobs_service.run_data import JobError


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.04, "40 ms"),
        (3.24, "3.2 s"),
        (59.97, "1 min"),
        (725.0, "12 min 5 s"),
        (7200.0, "2 h"),
        (5400.0, "1 h 30 min"),
        (86_400.0, "1 d"),
        (97_200.0, "1 d 3 h"),
        (-4.0, "0 ms"),
        (None, ""),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float | None, text: str) -> None:
    assert rendering.duration(seconds).replace(rendering.NBSP, " ") == text


def test_characters_that_act_on_a_screen_are_shown_as_what_they_are() -> None:
    assert rendering.brief("a\u202eb") == "a\\u202eb"
    assert "\x1b" not in rendering.lines("red\x1b[31m\nnext")
    assert rendering.brief("x" * 200, 10) == "x" * 9 + "…"
    assert rendering.error_line(JobError("Boom", "a\nb")) == "Boom: a b"


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("every 5m", "Every 5\u00a0min"),
        ("every 1h", "Every hour"),
        ("every 1h30m", "Every 1\u00a0h\u00a030\u00a0min"),
        ("* * * * * UTC", "Every minute"),
        ("*/15 * * * * UTC", "Every 15 minutes"),
        ("30 * * * * UTC", "Every hour, at :30"),
        ("0 */6 * * * UTC", "Every 6 hours"),
        ("5 */6 * * * UTC", "Every 6 hours, at :05"),
        ("30 2 * * * America/New_York", "Daily at 02:30, New York"),
        ("0 9 * * 1 UTC", "Mondays at 09:00, UTC"),
        ("0 9 * * 1-5 Europe/Berlin", "Mondays to Fridays at 09:00, Berlin"),
        ("0 9 1 * * UTC", "Day 1 of the month at 09:00, UTC"),
        ("0 9 1 * 1 UTC", ""),
        ("0 9 * 1 * UTC", ""),
        ("0 9-17 * * * UTC", ""),
        ("*/15 9 * * * UTC", ""),
        ("*/7 * * * * UTC", ""),
        ("0 */5 * * * UTC", ""),
        ("*/0 * * * * UTC", ""),
        ("0 9 * * MON,WED UTC", ""),
        ("0,30 * * * * UTC", ""),
        ("@daily UTC", ""),
        ("* 9 * * * UTC", ""),
    ],
)
def test_schedules_are_said_as_people_say_them(written: str, words: str) -> None:
    assert rendering.schedule_words(written) == words
