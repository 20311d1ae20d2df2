"""Durations as people type them (`90`, `2.5s`, `1h30m`, `2d`): code, command line and dashboard read them alike."""

from __future__ import annotations

import math
import re
from typing import Final

from jobs_service.names import one_line

_UNITS: Final = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_WITH_UNITS: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)
_PLAIN_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


def typed(seconds: float) -> str:
    """Return a duration as it is typed: `1d`, `1h30m`, `2.5s`; `seconds_of` is the inverse.

    Args:
        seconds: 0 or more.
    """
    text = ""
    for unit in "dhm":
        number, seconds = divmod(seconds, _UNITS[unit])
        text += f"{number:.0f}{unit}" if number else ""
    return text + f"{seconds:g}s" if seconds or not text else text


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration, 0 or more; None when the text is none, or one that no float holds.

    Args:
        text: a plain number of seconds, or numbers with the units d, h, m, s in that order; only the seconds may have
            a fraction.
    """
    match = _WITH_UNITS.fullmatch(text)
    if _PLAIN_NUMBER.fullmatch(text):
        seconds = float(text)
    elif text and match is not None:
        given = zip(match.groups(), _UNITS.values(), strict=True)
        seconds = sum(float(number) * unit for number, unit in given if number)
    else:
        return None
    return None if math.isinf(seconds) else seconds


def parsed(text: str) -> float:
    """Return the seconds of a duration; see `seconds_of`.

    Raises:
        ValueError: it is none; the message says what to write.
    """
    seconds = seconds_of(text)
    if seconds is None:
        raise ValueError(f"{one_line(text, 40)} is no duration; write 90, 30s, 10m, 1h30m or 2d")
    return seconds
