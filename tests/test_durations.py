"""Durations as people type them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service import durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("90", 90.0),
        ("1.5", 1.5),
        ("30s", 30.0),
        ("2.5s", 2.5),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("2d", 172_800.0),
        ("1d1h1m1s", 90_061.0),
    ],
)
def test_a_duration_that_was_typed_is_read(text: str, seconds: float) -> None:
    assert durations.seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "1x", "-5", "1m1h", "1.5m", "1e3", "٣", " 1s", "1s\n", "9" * 400, "9" * 400 + "d"]
)
def test_what_is_no_duration_gives_none(text: str) -> None:
    assert durations.seconds_of(text) is None


@pytest.mark.parametrize("text", ["", "h", "1x", "-5", "1m1h", "soon", "<b>"])
def test_what_is_no_duration_says_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write 90, 30s, 10m"):
        durations.parsed(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (2.5, "2.5s"), (60, "1m"), (5400, "1h30m"), (86_400, "1d"), (90_061, "1d1h1m1s")]
)
def test_a_duration_is_shown_in_the_units_in_which_it_is_typed(seconds: float, text: str) -> None:
    assert durations.typed(seconds) == text


@given(st.integers(0, 10**12))
def test_what_is_shown_is_read_as_the_same_duration(seconds: int) -> None:
    assert durations.seconds_of(durations.typed(seconds)) == seconds
