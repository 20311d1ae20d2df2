"""Small runs that look at one thing only: their users meet there all the time, and little else hides what they show.

In most other runs many things go on at once, in a weather that excuses much. What needs several things to come
together at the right moment (two transactions, a store that is nearly too small) hardly
ever happens there. Each of these runs draws one such situation, and mostly no faults, so that every check holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from unittest.mock import patch

from jobs_service.layer import reads, transaction
from jobs_service.store.base import Limits
from jobs_service.testing import Choices
from tests.simulation.sizes import Sizes

_FOCUSED: Final = 0.05
"""The share of runs that are about one of `_KINDS`."""

_CALM: Final = 0.7
"""The share of these without faults; the others have many that take no time."""

_ROOM: Final = 400
"""Bytes of a record that are not its data, with a short history."""

_OF_HANDLERS: Final = 0.07
"""The share of the others that are about handlers only."""

LANE_CRASHES: Final = "crash:lane"
"""The kind of fault that has a worker pool crash just before or after it gets a place for a job."""

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
"""The rates of the faults of runs of handlers, one of which is drawn."""

_TIGHT: Final = (Limits(), Limits(transaction=8_000), Limits(transaction=8_000), Limits(transaction=20_000))
"""Limits of a transaction in runs of handlers, one of which is drawn."""

_SUBJECTS: Final[Sequence[tuple[str, ...]]] = (
    ("handlers", "foremen"),
    ("handlers", "foremen"),
    ("handlers", "foremen", "leavers", "pausers"),
)
"""The workloads of these runs, one of which is drawn."""


@dataclass(frozen=True)
class Focus:
    """What a small run is about; the default restricts nothing.

    Attributes:
        workloads: those that take part; None for all.
        profile: of the weather; None to have it drawn.
        latency: of the cluster, seconds; None for what the weather has.
        rates: of kinds of fault, beside those of the weather.
        sizes: of things; None for those that are drawn as everywhere.
        limits: of transactions; None for those that are drawn as everywhere.
        processes: how many there are at least.
        of_handlers: whether it is about handlers, which have options then that they have nowhere else.
        slots: of the handlers; None for as many as are drawn everywhere.
        budget: steps that are taken at most; None for as many as are drawn everywhere.
        settings: of the processes, in place of those that are drawn.
        constants: of modules of the service, in place of what they are.
    """

    workloads: Sequence[str] | None = None
    profile: str | None = None
    latency: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    sizes: Sizes | None = None
    limits: Limits | None = None
    processes: int = 1
    of_handlers: bool = False
    slots: int | None = None
    budget: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    constants: Sequence[tuple[Any, str, Any]] = ()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Have the service's constants be those of the run, until left."""
        with ExitStack() as stack:
            for module, name, value in self.constants:
                stack.enter_context(patch.object(module, name, value))
            yield


def draw_focus(choices: Choices, wanted: Sequence[str] | None, profile: str | None) -> Focus:
    """Draw what a run looks at only: at everything in most runs, and in those whose workloads or weather are chosen."""
    alone = None if profile is not None or wanted is None or len(wanted) != 1 else _ALONE.get(wanted[0])
    if alone is not None:
        return alone(choices.stream("focus"))
    if wanted is not None or profile is not None:
        return Focus(wanted, profile)
    random, handled = choices.stream("focus"), choices.stream("about handlers")
    if random.random() < _FOCUSED:
        return random.choices([*_KINDS], [*_KINDS.values()])[0](random)
    return _handled(handled) if handled.random() < _OF_HANDLERS else Focus()


def _tight(random: Random) -> Focus:
    """Large jobs in a store whose transactions hold a few of them: all are added, come due, run and end together."""
    return Focus(
        ("bulk", "workers"),
        _weather(random),
        sizes=_narrow(random, random.choice([4, 6])),
        budget=random.choice([16, 30]),
        settings={"pending_batch": 100, "activity_batch": 1000, "add_batch": random.choice([3, 1000, 1000])},
    )


def _tight_handlers(random: Random) -> Focus:
    """Large jobs in such a store, which many handlers run at the same time."""
    return Focus(
        ("handlers",),
        "calm",
        sizes=_narrow(random, 4),
        processes=random.choice([1, 2]),
        slots=random.choice([3, 12, 12]),
        budget=20,
        settings={"pending_batch": 100, "activity_batch": 1000},
    )


def _narrow(random: Random, jobs: int) -> Sizes:
    """Return a store whose transactions hold a few of the largest jobs, of which there are many."""
    value = random.choice([1_500, 4_000])
    edge = value - value // 32 - _ROOM
    padding = random.choice([(edge,), (edge, edge, 0), (edge // 2, edge)])
    return Sizes(Limits(key=300, value=value, transaction=value * jobs + 4_000), padding)


def _woven(random: Random) -> Focus:
    """Transactions of many operations, decisions that others make untrue, retries, and commits that many share."""
    return Focus(
        ("weavers",),
        "calm",
        random.choice([0.0, 0.0, 0.002, 0.05]),
        rates=random.choice([{}, {}, {"conflict": 0.2, "commit_unknown": 0.1}]),
        limits=Limits(),
        processes=random.choice([1, 1, 2]),
        budget=14,
        constants=(
            (transaction, "COUNT_PAGE", random.choice([2, 3, 7, 10_000])),
            (reads, "MOST_ROWS", random.choice([2, 5, 2000])),
        ),
    )


def _handled(random: Random) -> Focus:
    """Handlers, and those who order them about; and at most one kind of trouble."""
    workloads, trouble = random.choice(_SUBJECTS), random.choice(_TROUBLES)
    return Focus(
        workloads,
        "calm",
        rates=trouble,
        limits=random.choice(_TIGHT),
        budget=random.choice([6, 12, 24]),
        of_handlers=True,
    )


def _weather(random: Random) -> str:
    return "calm" if random.random() < _CALM else "gusty"


_KINDS: Final = {
    _tight: 4,
    _tight_handlers: 2,
    _woven: 8,
}
"""What there is to look at, and how often each is drawn beside the others: less often what takes its time."""

_ALONE: Final[Mapping[str, Callable[[Random], Focus]]] = {
    "weavers": _woven,
}
"""The situation of each workload that is in no other one: whoever chooses only that workload has this as well."""
