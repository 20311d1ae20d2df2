"""Small charts as plain geometry, which templates draw as SVG: no script, no inline style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 132.0
HEIGHT: Final = 28.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle of a chart.

    Attributes:
        kind: the state that determines the colour.
        x, y, width, height: in units of the chart.
    """

    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Chart:
    """The geometry that a template draws.

    Attributes:
        width, height: of the drawing, in its own units.
        bars: rectangles.
        line, area: the points of a line and of the area below it; "" for none.
        says: the chart in words, for screen readers.
        most: the greatest value.
    """

    width: float
    height: float
    bars: tuple[Bar, ...] = ()
    line: str = ""
    area: str = ""
    says: str = ""
    most: float = 0.0


def stacked(
    series: Sequence[tuple[str, Sequence[int]]], says: str, *, width: float = WIDTH, height: float = HEIGHT
) -> Chart:
    """Return a chart of stacked bars.

    Args:
        series: kinds with their values, the lowest first; all of the same length.
        says: the chart in words.
        width, height: of the drawing.
    """
    places = len(series[0][1])
    most = max((sum(values[place] for _, values in series) for place in range(places)), default=0)
    step = width / max(places, 1)
    bars = []
    for place in range(places):
        below = 0.0
        for kind, values in series:
            if not values[place]:
                continue
            # Even a single event beside very many others must be visible.
            tall = max(values[place] / most * (height - 1), 1.5)
            bars.append(
                Bar(
                    kind,
                    round(place * step, 2),
                    round(max(height - below - tall, 0.0), 2),
                    round(max(step * 0.8, 0.8), 2),
                    round(tall, 2),
                )
            )
            below += tall
    return Chart(width, height, tuple(bars), says=says, most=float(most))


def line(values: Sequence[float | None], says: str, *, width: float = WIDTH, height: float = HEIGHT) -> Chart:
    """Return a line chart; a missing value is drawn at the bottom.

    Args:
        values: the values from left to right.
        says: the chart in words.
        width, height: of the drawing.
    """
    known = [value for value in values if value is not None]
    most = max(known, default=0.0)
    if not most:
        return Chart(width, height, says=says)
    step = width / max(len(values) - 1, 1)
    points = [
        (round(place * step, 2), round(height - 1 - (value or 0.0) / most * (height - 3), 2))
        for place, value in enumerate(values)
    ]
    drawn = " ".join(f"{x},{y}" for x, y in points)
    return Chart(width, height, line=drawn, area=f"0,{height} {drawn} {width},{height}", says=says, most=most)
