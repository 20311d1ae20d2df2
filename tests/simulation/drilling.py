"""What a run draws in which nothing but drills are done, and what is otherwise there: see the package `drills`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jobs_service.testing import Choices
from tests.simulation.machine import Machine
from tests.simulation.weather import HARMLESS

_WITH_DRILLS: Final = 0.1
"""The share of runs in which nothing but small things are done whose outcome is known exactly."""

_DRILLS: Final = (4, 5)
"""How many of them there are in such a run."""

MOST_OF_DRILLS: Final = 2
"""Processes in such a run: where many look at the same types, it takes long, and nobody sees more."""


def draw_drills(choices: Choices, wanted: Sequence[str] | None) -> int:
    """Draw how many small things are done in a run in which nothing else is; 0 for a run that is another one.

    Args:
        wanted: the workloads that somebody has chosen; None to have it drawn.
    """
    random = choices.stream("drilled runs")
    drawn, count = random.random(), random.choice(_DRILLS)
    is_drilled = drawn < _WITH_DRILLS if wanted is None else [*wanted] == ["drills"]
    return count if is_drilled else 0


def let_nothing_go_wrong(choices: Choices, machine: Machine | None) -> None:
    """Have no process die or leave, and no store be full."""
    choices.rates = {kind: rate for kind, rate in choices.rates.items() if kind in HARMLESS - {"heir leaves"}}
    if machine is not None:
        machine.map_size = None
