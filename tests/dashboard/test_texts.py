"""Words for times, durations, numbers and JSON."""

import pytest

from jobs_service.dashboard import rendering
from jobs_service.dashboard.rendering import when
from jobs_service.run_data import JobError, Progress


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
    assert rendering.duration(seconds) == text


def test_numbers_are_grouped_and_whole() -> None:
    assert rendering.count(1_234_567) == "1\u202f234\u202f567"
    assert rendering.many(1, "job") == "1 job"
    assert rendering.json_text({"n": 2**70}) == '{\n  "n": 1180591620717411303424\n}'


def test_characters_that_act_on_a_screen_are_shown_as_what_they_are() -> None:
    assert rendering.brief("a\u202eb") == "a\\u202eb"
    assert "\x1b" not in rendering.lines("red\x1b[31m\nnext")
    assert rendering.brief("x" * 200, 10) == "x" * 9 + "…"
    assert rendering.error_line(JobError("Boom", "a\nb")) == "Boom: a b"


def test_progress_says_how_far_it_is() -> None:
    assert rendering.progress_line(Progress(3, 4, "resizing")) == "3 of 4, resizing"
    assert rendering.share(Progress(3, 4)) == 0.75
    assert rendering.share(Progress(9, 4)) == 1
    assert rendering.share(Progress(3)) is None


def test_times_are_in_utc_and_have_the_exact_moment_with_them() -> None:
    assert "2001-09-09 01:46:40 UTC" in when(1_000_000_000)
    assert ">1 min ago<" in when(1_000_000_000, since=1_000_000_060)
    assert ">in 1 h<" in when(1_000_000_000, since=1_000_000_000 - 3600)
    assert "never" in when(None)
    assert "never" in when(1e300)
