"""Runs that are about one part of the service only: nobody else takes part, and there is at most one kind of trouble.

What is promised to be prompt, or in an order, can be held to it all the time there. In the usual storms there is
nearly always a reason for which it may have been late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jobs_service.store.base import Limits
from jobs_service.testing import Choices

_FOCUSED: Final = 0.07
"""The share of runs that are about one part only."""

LANE_CRASHES: Final = "crash:lane"
"""The kind of fault that has a worker pool crash just then when it is about to have, or has, a place for a job."""

ENDS_TIME_OUT: Final = "ends time out"
"""The kind of fault that has commits of the moment in which many jobs end be told that their time is up."""

_TROUBLES: Final[Sequence[Mapping[str, float]]] = (
    {},
    {},
    {},
    {"kill": 0.1},
    {"crash": 0.1},
    {LANE_CRASHES: 0.8},
    {LANE_CRASHES: 0.8},
    {ENDS_TIME_OUT: 0.5},
    {"conflict": 0.2, "commit_unknown": 0.1},
)
"""The rates of the faults of these runs, one of which is drawn."""

_LIMITS: Final = (Limits(), Limits(transaction=8_000), Limits(transaction=8_000), Limits(transaction=20_000))
"""Of a transaction in these runs, one of which is drawn."""

_BUDGETS: Final = (8, 16, 30)
"""How many steps these runs take, one of which is drawn."""

_SUBJECTS: Final[Sequence[tuple[str, ...]]] = (
    ("handlers", "foremen"),
    ("handlers", "foremen"),
    ("handlers", "foremen", "leavers", "pausers"),
    ("tickers",),
    ("thinkers",),
)
"""The workloads of these runs, one of which is drawn."""


@dataclass(frozen=True)
class Focus:
    """What a run is about.

    Attributes:
        workloads: the names of those that take part.
        rates: of faults.
        limits: of transactions.
        budget: how many steps there are.
        profile: of the weather beside that.
    """

    workloads: tuple[str, ...]
    rates: Mapping[str, float]
    limits: Limits
    budget: int
    profile: str = "calm"


def draw_focus(choices: Choices) -> Focus | None:
    """Draw whether a run is about one part of the service, and which."""
    random = choices.stream("focus")
    if random.random() >= _FOCUSED:
        return None
    workloads, rates = random.choice(_SUBJECTS), random.choice(_TROUBLES)
    rates = rates if "handlers" in workloads else {}
    return Focus(workloads, rates, random.choice(_LIMITS), random.choice(_BUDGETS))
