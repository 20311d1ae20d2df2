"""The page of a stretch of time: what ran then, of which types, the one whose runs took most first."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import Response

from jobs_service import durations
from jobs_service.dashboard import figures
from jobs_service.dashboard.rendering import page
from jobs_service.dashboard.visit import BadAddress, Visit
from jobs_service.names import shown
from jobs_service.service import queries

_MINUTE: Final = 60
_HOUR: Final = 3600
_LONGEST: Final = 24 * _HOUR
"""Most seconds of the stretch."""
_MOST_MINUTES: Final = 10 * _MINUTE
"""Longest stretch that is read by minute: there may be thousands of types. Others are rounded to whole hours."""
_MINUTES_KEPT: Final = 25 * _HOUR
_MOST: Final = 100
"""Most types that are shown."""


async def past(visit: Visit) -> Response:
    """Return the page; its address has `from`, a time in UTC, and `for`, a duration."""
    begin, length = _stretch(visit)
    is_minutes = length <= _MOST_MINUTES and begin >= visit.now - _MINUTES_KEPT
    if not is_minutes:
        length = (-(-(begin + length) // _HOUR) - begin // _HOUR) * _HOUR
        begin = begin // _HOUR * _HOUR
    seconds = _MINUTE if is_minutes else _HOUR
    first, number = begin // seconds, length // seconds
    types = [*await visit.reads.counts()]
    found = await queries.columns(
        visit.service._access, types, "minute" if is_minutes else "hour", first, first + number - 1, number, times=False
    )
    # There may be very many types: the loop goes on meanwhile.
    busy = await asyncio.to_thread(
        lambda: sorted(
            (
                (type, every)
                for type, (_, every) in zip(types, found, strict=True)
                if any(figures.numbers(every.totals))
            ),
            key=lambda item: -item[1].ran.sum,
        )
    )
    took = sum(every.ran.sum for _, every in busy)
    context = {
        "begin": begin,
        "end": begin + length,
        "address": (_text(begin), durations.typed(length)),
        "every": figures.together([every for _, every in busy]),
        "took": took,
        "p95": figures.percentile,
        "retried": figures.retried,
        "found": len(busy),
        "rows": [
            {
                "name": shown(type),
                "every": every,
                "share": every.ran.sum / took if took else 0.0,
                "href": visit.url("/type", type_=type, **_ages(visit.now, begin, begin + length)),
            }
            for type, every in busy[:_MOST]
        ],
        "earlier": address(visit, begin - length, length),
        "later": address(visit, begin + length, length) if begin + length < visit.now else None,
    }
    return page(visit, "past.html", context)


def address(visit: Visit, begin: float, seconds: float) -> str:
    """Return the address of the page for a stretch; "" for one that is too long.

    Args:
        visit: the request.
        begin: seconds since the epoch.
        seconds: its length.
    """
    if seconds > _LONGEST:
        return ""
    return visit.url("/past", **{"from": _text(begin), "for": durations.typed(seconds)})


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _ages(now: float, begin: float, end: float) -> dict[str, Any]:
    """Return the filter for jobs whose last event was in a stretch."""
    older = {"older": durations.typed(int(now - end))} if end < now else {}
    return {"younger": durations.typed(max(int(now - begin), 1)), **older}


def _stretch(visit: Visit) -> tuple[int, int]:
    """Return the beginning, seconds since the epoch, and the length in seconds, both of whole minutes."""
    text = visit.query.get("from", "").strip() or _text(visit.now // _HOUR * _HOUR - _HOUR)
    try:
        time = datetime.fromisoformat(text)
        begin = int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()) // _MINUTE * _MINUTE
        _text(begin + 2 * _LONGEST)
    except (ValueError, OverflowError, OSError):
        raise BadAddress(f"from={text[:60]!r} is no time; write 2026-11-26T14:00Z") from None
    try:
        length = durations.parsed(visit.query.get("for", "").strip() or "1h")
    except ValueError as error:
        raise BadAddress(f"for: {error}") from None
    if not _MINUTE <= length <= _LONGEST or begin < _LONGEST:
        raise BadAddress("a stretch begins after 1970-01-02, and is between 1m and 1d long")
    return begin, int(length) // _MINUTE * _MINUTE
