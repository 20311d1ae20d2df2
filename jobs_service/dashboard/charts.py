"""Charts as geometry: lanes with one axis of time, each with a linear scale of its own; templates draw them as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jobs_service.dashboard.rendering import NBSP, count, duration

COLUMN: Final = 10.0
"""Width of a column of a lane, in units of the drawing."""
HEIGHT: Final = 100.0
_LEAST: Final = 3.0
"""Least height of a bar: a single failure beside very many successes must be visible."""
_STEPS: Final = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0)
_NICE_SECONDS: Final = (60, 120, 300, 600, 900, 1800, 3600, 7200, 18_000, 43_200, 86_400, 172_800, 604_800)


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle of a chart; `kind` is the state that determines its colour."""

    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Lane:
    """A drawing that is `width` wide and HEIGHT high.

    Attributes:
        name: its heading.
        says: the drawing in words, for screen readers.
        width: in units of the drawing.
        top: the greatest value of the scale, in words.
        keys: classes of CSS and words of the legend.
        area: points of the area below the first line; "" for none.
        lines: classes of CSS and points of lines.
        bars: rectangles.
    """

    name: str
    says: str
    width: float
    top: str
    keys: tuple[tuple[str, str], ...] = ()
    area: str = ""
    lines: tuple[tuple[str, str], ...] = ()
    bars: tuple[Bar, ...] = ()


def counted(
    name: str,
    says: str,
    *,
    area: tuple[str, Sequence[int]] | None = None,
    bars: Sequence[tuple[str, str, Sequence[int]]] = (),
    ghost: tuple[str, Sequence[int]] | None = None,
    height: float = HEIGHT,
) -> Lane:
    """Return a lane of numbers.

    Args:
        name, says: as in Lane.
        area: a kind, and its values as an area with a line.
        bars: kinds with their words and values, stacked, the lowest first.
        ghost: words and values to compare the area with.
        height: of the drawing.
    """
    series = [values for _, _, values in bars]
    stacked = [sum(values) for values in zip(*series, strict=True)]
    most = max([*stacked, *(area[1] if area else ()), *(ghost[1] if ghost else ())], default=0)
    top = _nice_count(most)
    drawn: list[Bar] = []
    for place in range(len(stacked)):
        below = 0.0
        for kind, _, values in bars:
            if values[place]:
                tall = max(values[place] / top * height, _LEAST * height / HEIGHT)
                y = round(max(height - below - tall, 0.0), 1)
                drawn.append(Bar(kind, round(place * COLUMN + 1, 1), y, COLUMN - 2, round(tall, 1)))
                below += tall
    columns = len(area[1]) if area else len(stacked)
    width = columns * COLUMN
    keys = tuple((kind, word) for kind, word, _ in bars)
    greatest = count(top) if top < 1e6 else f"{top / 1e6:g}{NBSP}M"
    if area is None or not most:
        return Lane(name, says, width, greatest, keys, bars=tuple(drawn))
    [points] = _segments(area[1], top, height)
    points = f"0,{points.partition(',')[2].partition(' ')[0]} {points} {width:g},{points.rpartition(',')[2]}"
    return Lane(
        name,
        says,
        width,
        greatest,
        ((area[0], area[0]), *([("ghost", ghost[0])] if ghost else ()), *keys),
        f"0,{height:g} {points} {width:g},{height:g}",
        ((area[0], points), *([("ghost", _segments(ghost[1], top, height)[0])] if ghost else ())),
        tuple(drawn),
    )


def timed(name: str, says: str, kind: str, p95: Sequence[float | None], median: Sequence[float | None]) -> Lane:
    """Return a lane of durations: the 95th percentile solid, the median dotted; a missing value interrupts the line."""
    top = _nice_seconds(max((value for value in p95 if value is not None), default=0.0))
    lines = [(kind, points) for points in _segments(p95, top, HEIGHT)]
    lines += [(f"{kind} p50", points) for points in _segments(median, top, HEIGHT)]
    keys = ((kind, "p95"), (f"{kind} p50", "median"))
    return Lane(name, says, len(p95) * COLUMN, duration(top), keys, lines=tuple(lines))


def _segments(values: Sequence[float | None], top: float, height: float) -> list[str]:
    """Return the points of the lines between missing values."""
    found: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            found.append([])
            continue
        y = round(height - min(value / top, 1.0) * (height - 1), 1)
        x = place * COLUMN + COLUMN / 2
        alone = not found[-1] and (place + 1 == len(values) or values[place + 1] is None)
        found[-1] += [f"{x - 4:g},{y:g}", f"{x + 4:g},{y:g}"] if alone else [f"{x:g},{y:g}"]
    return [" ".join(points) for points in found if points]


def _nice_count(most: int) -> int:
    if most <= 5:
        return max(most, 1)
    power = 10 ** math.floor(math.log10(most))
    return int(next(step * power for step in _STEPS if step * power >= most))


def _nice_seconds(most: float) -> float:
    if most <= 0:
        return 1.0
    if most > _NICE_SECONDS[0] / 2:
        return float(next((each for each in _NICE_SECONDS if each >= most), math.ceil(most / 86_400) * 86_400))
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in _STEPS if step * power >= most * 0.999)
