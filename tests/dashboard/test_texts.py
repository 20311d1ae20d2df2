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
