"""Shrinks a failing run to the fewest operations, faults and deviations of the schedule that still fail the same way.

The search is that of ddmin (Zeller and Hildebrandt: Simplifying and Isolating Failure-Inducing Input, IEEE Transactions
on Software Engineering 28(2), 2002) over the three sets in turn, by complements only: every success drops members, and
goes on from there instead of from the beginning. What a run no longer uses is dropped without a try.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from jobs_service.testing.loop import Plan
from tests.simulation.plans import fault_key

if TYPE_CHECKING:
    from tests.simulation.report import Report

Concern: TypeAlias = Literal["operations", "faults", "deviations"]
Items: TypeAlias = list[int] | list[str]

CONCERNS: tuple[Concern, ...] = ("operations", "faults", "deviations")


def kind_of(violation: str) -> str:
    """Return what kind of violation it is: its text up to the first colon."""
    return violation.partition(":")[0]


def shrink(
    report: Report,
    run: Callable[[Plan], Report],
    *,
    tries: int = 2000,
    seconds: float | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> tuple[Plan, Report]:
    """Look for the smallest plan that fails as a report's run does.

    A run fails in the same way when one of its violations is of the same kind as the report's first one. The outcome
    depends on nothing but the report and `run`, unless the time is up before the search is over.

    Args:
        report: of a run with a violation.
        run: runs a plan; the same plan must always have the same report.
        tries: how many plans are tried at most.
        seconds: after so much time no further plan is tried; None for no limit.
        tell: gets a line for every smaller plan that is found, and one when the search cannot go on.

    Returns:
        The plan, and the report of its run. They are those of `report` when nothing smaller was found.
    """
    search = _Search(report, run, tries, seconds, tell)
    try:
        search.to_the_end()
    except _BudgetSpentError:
        tell("the search ends here: its budget is spent")
    search.drop_unused()
    return search.best.plan, search.best


class _BudgetSpentError(Exception):
    """No further plan may be tried."""


class _Search:
    """The search for a smaller plan.

    Attributes:
        best: of the smallest plan so far that was run and failed.
    """

    def __init__(
        self,
        report: Report,
        run: Callable[[Plan], Report],
        tries: int,
        seconds: float | None,
        tell: Callable[[str], object],
    ) -> None:
        self.best = report
        self._wanted = kind_of(report.violations[0])
        self._run = run
        self._tries = tries
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._tell = tell
        self._refuted: set[int] = set()  # hashes: the plans themselves can have thousands of members each

    def to_the_end(self) -> None:
        """Search until no member of any set can go alone."""
        if not self._try(self._used()):
            self._tell("not shrunk: with all that it did named, and nothing else, the run does not fail again")
            return
        if not self._empty_what_is_drawn():
            self._minimize("operations", drawn_anew=True)
        size = None
        while size != (size := self._size()):
            for concern in CONCERNS:
                self._minimize(concern)

    def drop_unused(self) -> None:
        """Take what its run did not use out of the best plan, if that fails as well; beyond the budget by one run."""
        plan = self._used()
        if plan != self.best.plan:
            self._accept(self._run(plan))

    def _empty_what_is_drawn(self) -> bool:
        """Try to do without faults and deviations, which most bugs need few of; return whether both are gone."""
        without_deviations = replace(self._used(), deviations=frozenset())
        without_faults = replace(self._used(), faults=frozenset())
        for plan in (replace(without_deviations, faults=frozenset()), without_deviations, without_faults):
            if self._try(plan):
                break
        return self._size()[1:] == (0, 0)

    def _minimize(self, concern: Concern, *, drawn_anew: bool = False) -> None:
        """Try to drop all members of one set, then halves of what is left, quarters, and so on down to single ones.

        Args:
            drawn_anew: let the seed draw faults and deviations again where the known ones do not do. They are numbered
                by their chances, so that without an operation the same ones hit something else.
        """
        length = len(_items(self.best, concern))
        while length:
            items = _items(self.best, concern)
            # The last ones first: what came later seldom matters to what came before.
            for first in reversed(range(0, len(items), length)):
                gone = set(items[first : first + length])
                left = _items(self.best, concern)
                kept = frozenset(item for item in left if item not in gone)
                if len(kept) == len(left):
                    continue
                plan = _with(self._used(), concern, kept)
                if not self._try(plan) and drawn_anew:
                    self._try(replace(plan, faults=None, deviations=None))
            length //= 2

    def _try(self, plan: Plan) -> bool:
        """Return whether a plan fails in the same way, which makes it the best one."""
        if plan == self.best.plan:
            return True
        if hash(plan) in self._refuted:
            return False
        if self._tries <= 0 or (self._deadline is not None and time.monotonic() >= self._deadline):
            raise _BudgetSpentError
        self._tries -= 1
        if self._accept(self._run(plan)):
            operations, faults, deviations = self._size()
            self._tell(f"still fails with {operations} operations, {faults} faults, {deviations} deviations")
            return True
        self._refuted.add(hash(plan))
        return False

    def _accept(self, report: Report) -> bool:
        fails = any(kind_of(violation) == self._wanted for violation in report.violations)
        if fails:
            self.best = report
        return fails

    def _used(self) -> Plan:
        """Return the best plan without what its run did not use."""
        best = self.best
        return Plan(best.plan.seed, frozenset(best.operations), frozenset(best.faults), frozenset(best.deviations))

    def _size(self) -> tuple[int, ...]:
        return tuple(len(_items(self.best, concern)) for concern in CONCERNS)


def _with(plan: Plan, concern: Concern, kept: frozenset[Any]) -> Plan:
    changes: dict[str, Any] = {concern: kept}
    return replace(plan, **changes)


def _items(report: Report, concern: Concern) -> Items:
    if concern == "faults":
        return sorted(set(report.faults), key=fault_key)
    return sorted(set(report.operations if concern == "operations" else report.deviations))
