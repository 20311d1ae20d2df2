"""All random draws of a simulated world, from one seed.

Each concern has a stream of its own, and omitted choices still consume their draws. So a run without some operation,
fault or deviation of the schedule stays nearly the same run, which makes shrinking work.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Plan:
    """The plan of a run: all draws of a seed, or a part of them.

    Attributes:
        seed: of all draws.
        operations: numbers of the operations to carry out; None for all.
        faults: the faults that hit, as "kind:number"; None for all that the seed draws.
        deviations: numbers of the schedule's picks that may deviate from first come, first served; None for all.
    """

    seed: int
    operations: frozenset[int] | None = None
    faults: frozenset[str] | None = None
    deviations: frozenset[int] | None = None


class Choices:
    """The draws of one run, and a record of the effective ones.

    Args:
        plan: the seed, and the effective part of its draws.

    Attributes:
        rates: probability of each kind of fault at each opportunity; missing kinds never hit.
        disorder: probability that the schedule picks any of the ready callbacks, not the first.
        operations, faults, deviations: the effective ones, in the form of Plan's attributes.
        on_fault: called with the kind of every fault that hits.
    """

    def __init__(self, plan: Plan, *, rates: Mapping[str, float] | None = None, disorder: float = 0.0) -> None:
        self.plan = plan
        self.rates = dict(rates or {})
        self.disorder = disorder
        self.operations: list[int] = []
        self.faults: list[str] = []
        self.on_fault: Callable[[str], object] = lambda kind: None
        self.deviations: list[int] = []
        self._streams: dict[str, random.Random] = {}
        # By kind of fault: the number of opportunities so far, and the deciding random numbers.
        self._chances: dict[str, list[Any]] = {}
        self._numbered = 0
        self._picks = 0
        self._draw_pick = self.stream("schedule").random

    def stream(self, name: str) -> random.Random:
        """Return the source of randomness of one concern; the same object for the same name."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = random.Random(f"{self.plan.seed}/{name}")
        return stream

    def operation(self) -> bool:
        """Return whether to carry out the next operation."""
        number = self._numbered
        self._numbered = number + 1
        if self.plan.operations is not None and number not in self.plan.operations:
            return False
        self.operations.append(number)
        return True

    def fault(self, kind: str) -> float | None:
        """Return the severity of a fault of this kind that hits here, a number from 0 up to 1; None if none hits."""
        rate = self.rates.get(kind)
        if not rate:
            return None
        chance = self._chances.get(kind)
        if chance is None:
            chance = self._chances[kind] = [0, self.stream(kind).random]
        number: int = chance[0]
        chance[0] = number + 1
        drawn: float = chance[1]()
        if drawn >= rate:
            return None
        name = f"{kind}:{number}"
        if self.plan.faults is not None and name not in self.plan.faults:
            return None
        self.faults.append(name)
        self.on_fault(kind)
        return drawn / rate

    def pick(self, count: int) -> int:
        """Return the index of the ready callback (of at least two) to run next, 0 for the earliest."""
        if not self.disorder:
            return 0
        number = self._picks
        self._picks = number + 1
        drawn = self._draw_pick()
        if drawn >= self.disorder:
            return 0
        index = int(drawn / self.disorder * count)
        if index:
            if self.plan.deviations is not None and number not in self.plan.deviations:
                return 0
            self.deviations.append(number)
        return index

    def calm(self) -> None:
        """Let no fault hit from now on."""
        self.rates.clear()
