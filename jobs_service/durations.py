"""Durations: seconds, a timedelta, or a text as people type it (`90`, `2.5s`, `10m`, `1h30m`, `2d`), everywhere alike.

Arguments, options, settings, the command line, HTTP and the dashboard parse durations here, and sizes as people type
them (`500M`). This module imports no other module of the package, because `errors` needs it too.
"""

from __future__ import annotations

import math
import re
import sys
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias

Duration: TypeAlias = float | timedelta | str
"""Seconds, a timedelta, or a text such as "90s", "10m", "1h30m", "2d"."""

LONGEST: Final = 1e9
"""Seconds of the longest duration that most arguments may be: 31 years."""

WRITTEN: Final = ("90", "30s", "10m", "1h30m", "2d")
"""Examples of duration texts for messages."""

_UNITS: Final = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_WITH_UNITS: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)
_PLAIN_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_MOST_SHOWN: Final = 40


class Bounds(NamedTuple):
    """The allowed range of durations.

    Attributes:
        least, most: the limits in seconds, both allowed.
        above: whether `least` itself is excluded.
        optional: whether None is allowed as well.
    """

    least: float = 0.0
    most: float = LONGEST
    above: bool = False
    optional: bool = False

    def seconds(self, value: Any) -> float | None:
        """Return a duration in seconds; None if it is no duration or is out of range."""
        seconds = seconds_of(value)
        if seconds is None or not (self.least < seconds if self.above else self.least <= seconds):
            return None
        return seconds if seconds <= self.most else None

    def __str__(self) -> str:
        none = "None and " if self.optional else ""
        sign = "> " if self.above else "from "
        to = " and <= " if self.above else " to "
        most = "" if self.most >= sys.float_info.max else f"{to}{self.most:.0f} s"
        return f"{none}durations {sign}{self.least:g}{most}, such as {ALLOWED}"


ALLOWED: Final = f"{WRITTEN[0]}, {', '.join(map(repr, WRITTEN[1:]))} or a timedelta"
"""Examples of durations for messages."""


def seconds_of(value: Any) -> float | None:
    """Return the seconds of a duration; None if the value is no duration.

    Args:
        value: a number (of seconds), a timedelta, or a text: a plain number of seconds, or numbers with the units d, h,
            m, s in that order; only the seconds may have a fraction.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, timedelta):
        return value.total_seconds()
    return _seconds_of_text(value) if isinstance(value, str) else None


def plain(value: Any) -> Any:
    """Convert a timedelta or a duration text to seconds; return any other value unchanged, for other code to refuse."""
    seconds = seconds_of(value) if isinstance(value, str | timedelta) else None
    return value if seconds is None else seconds


def parsed(text: str, *others: str) -> float:
    """Return the seconds of a duration that a user typed.

    Args:
        text: the input.
        others: other allowed texts, for the message.

    Raises:
        ValueError: the text is no duration; the message shows examples.
    """
    seconds = _seconds_of_text(text)
    if seconds is None:
        *most, last = *WRITTEN, *others
        line = "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))
        line = line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN - 1]}…"
        raise ValueError(f"{line!r} is no duration; write {', '.join(most)} or {last}")
    return seconds


def typed(seconds: float) -> str:
    """Return a duration as it is typed: `1d`, `1h30m`, `2.5s`; `parsed` is the inverse.

    Args:
        seconds: 0 or more.
    """
    text = ""
    for unit in "dhm":
        number, seconds = divmod(seconds, _UNITS[unit])
        text += f"{number:.0f}{unit}" if number else ""
    return text + f"{seconds:g}s" if seconds or not text else text


def _seconds_of_text(text: str) -> float | None:
    match = _WITH_UNITS.fullmatch(text)
    if _PLAIN_NUMBER.fullmatch(text):
        seconds = float(text)
    elif text and match is not None:
        given = zip(match.groups(), _UNITS.values(), strict=True)
        seconds = sum(float(number) * unit for number, unit in given if number)
    else:
        return None
    return None if math.isinf(seconds) else seconds


LONGEST_REST: Final = 3.0
"""Most seconds between two slow reads."""


def rest_after(took: float) -> float:
    """Return the pause after a read of this duration: reads take a quarter of the time at most.

    The pause is bounded: a read is very slow after an outage of the store, and subscribers must not wait three times as
    long again.
    """
    return min(3 * took, LONGEST_REST)


# Sizes

_BYTES: Final = re.compile(r"(\d{1,18})([kMG]?)B?", re.ASCII)
_BYTE_UNITS: Final = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}


def bytes_of(text: str) -> int | None:
    """Return the number of bytes in a text such as 500000000, 500M or 2G; None if it tells none."""
    match = _BYTES.fullmatch(text)
    return int(match[1]) * _BYTE_UNITS[match[2]] if match else None
