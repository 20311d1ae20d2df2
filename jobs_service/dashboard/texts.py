"""Formats times, durations, numbers and JSON for people, as text and never as HTML."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

from jobs_service.model import JobError, Progress
from jobs_service.names import compact, one_line, printable


def count(number: int) -> str:
    """Return a number with a thin space between thousands."""
    return f"{number:,}".replace(",", "\u202f")


def many(number: int, noun: str) -> str:
    """Return a number with a noun, in the plural unless it is 1."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """Return a duration in its two greatest units: 1 d 3 h, 12 min 5 s, 3.2 s, 40 ms; "" for None."""
    if seconds is None:
        return ""
    seconds = max(seconds, 0.0)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{count(days)} d {hours} h" if hours else f"{count(days)} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def at(seconds: float | None) -> datetime | None:
    """Return the time for seconds since the epoch; None for None, and for seconds outside the calendar."""
    try:
        if seconds is None or not math.isfinite(seconds):
            return None
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def size(number: int) -> str:
    """Return a size in bytes for people: 512 B, 20 kB, 1.2 MB, 3.4 GB."""
    if number < 1000:
        return f"{number} B"
    value = float(number)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.5 or unit == "TB":
            break
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def brief(text: str, most: int = 120) -> str:
    """Return a text on one line, cut to a number of characters."""
    return one_line(text, most)


def lines(text: str) -> str:
    """Return a text of several lines with its control characters escaped."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.splitlines())


def json_text(value: Any) -> str:
    """Return a JSON value on several lines; long integers stay exact."""
    return lines(json.dumps(value, ensure_ascii=False, indent=2))


def on_one_line(value: Any, most: int = 160) -> str:
    """Return a JSON value on one line, cut to a number of characters; "" for None."""
    return "" if value is None else brief(compact(value), most)


def error_line(error: JobError, most: int = 200) -> str:
    """Return the error of a run on one line."""
    return brief(f"{error.type}: {error.message}" if error.message else error.type, most)


def progress_line(progress: Progress) -> str:
    """Return the progress of a job on one line."""
    total = "" if progress.total is None else f" of {progress.total:g}"
    message = f", {brief(progress.message, 80)}" if progress.message else ""
    return f"{progress.done:g}{total}{message}"


def share(progress: Progress) -> float | None:
    """Return the completed share of a job's work, 0 to 1; None without a total."""
    if not progress.total or progress.total < 0:
        return None
    return min(max(progress.done / progress.total, 0.0), 1.0)
