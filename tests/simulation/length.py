"""How long a run is: seconds, hours in which little happens, or days, and how wrong its clocks are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from jobs_service.testing import Choices

_LONG: Final = 0.025
"""The share of runs that are long."""
_PACES: Final = (0.01, 0.002)
"""How many steps a lane takes in a second of a long run."""
_CLOCKS_OFF: Final = (1800.0, 1800.0, 21_600.0)
"""Seconds by which clocks are wrong in long runs."""
_HOURS: Final = 3600.0
_WITH_DAYS: Final = 0.25
"""The share of the runs with clocks off by hours that take days."""


@dataclass(frozen=True)
class Length:
    """The length of a run.

    Attributes:
        long: whether hours pass, in which little happens.
        clocks_off: seconds by which a process's clock is wrong when it starts.
        storm: seconds after which the storm ends at the latest.
        calm: seconds in which all must end that is open then.
        rest: seconds between two looks whether it has.
        most_steps: callbacks that a run may take.
        tired: callbacks after which its storm ends.
        paces: how many steps a lane takes in a second, one of which is drawn; none where others are.
    """

    long: bool = False
    clocks_off: float = 20.0
    storm: float = 90.0
    calm: float = 240.0
    rest: float = 0.5
    most_steps: int = 200_000
    tired: int = 20_000
    paces: tuple[float, ...] = ()


def of_drills() -> Length:
    """Return the length of a run of drills: each of them comes to its own end, and then all comes to rest.

    Some take minutes, and more where each request takes long.
    """
    return Length(storm=900.0, calm=600.0)


def draw_length(choices: Choices) -> Length:
    """Draw how long a run is."""
    if choices.stream("length").random() >= _LONG:
        return Length()
    off = choices.stream("clocks off").choice(_CLOCKS_OFF)
    if off < _HOURS:
        return Length(True, off, storm=20_000.0, calm=8_000.0, most_steps=400_000, paces=_PACES)
    # What a clock that is hours ahead has made ready waits until it is due by the others; meanwhile hearts beat.
    calm, rest = 8_000.0 + 2 * off, 10.0
    if choices.stream("days").random() >= _WITH_DAYS:
        return Length(True, off, 20_000.0, calm, rest, most_steps=1_200_000, paces=_PACES)
    slower = tuple(pace / 30 for pace in _PACES)
    return Length(True, off, 200_000.0, calm, rest, most_steps=4_000_000, tired=200_000, paces=slower)
