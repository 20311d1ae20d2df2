"""Shrinking finds the smallest part of a run that fails, whatever fails and however its parts depend on each other."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service.testing.loop import Choices, Plan
from tests.simulation.report import Report
from tests.simulation.shrink import shrink

OPERATIONS = range(60)
FAULTS = [f"conflict:{number}" for number in range(20)] + [f"kill:{number}" for number in range(5)]
DEVIATIONS = range(100)


def report_of(plan: Plan, *violations: str) -> Report:
    """Return the report of a run that used all that its plan allows."""
    return Report(
        plan=plan,
        violations=list(violations),
        events=["an event"],
        operations=sorted(OPERATIONS if plan.operations is None else plan.operations),
        faults=sorted(FAULTS if plan.faults is None else plan.faults),
        deviations=sorted(DEVIATIONS if plan.deviations is None else plan.deviations),
        cells=Counter(),
        seconds=1.0,
        digest="",
    )


class World:
    """Runs plans, and remembers which.

    Args:
        violations: returns those of a run; what the plan leaves open is filled in before.
    """

    def __init__(self, violations: Callable[[Plan], list[str]]) -> None:
        self._violations = violations
        self.plans: list[Plan] = []

    def __call__(self, plan: Plan) -> Report:
        self.plans.append(plan)
        used = report_of(plan)
        whole = Plan(plan.seed, frozenset(used.operations), frozenset(used.faults), frozenset(used.deviations))
        return replace(used, violations=self._violations(whole))


def needing(
    operations: frozenset[int], faults: frozenset[str] = frozenset(), deviations: frozenset[int] = frozenset()
) -> World:
    """Return a world that fails when all of these are there."""

    def violations(plan: Plan) -> list[str]:
        assert plan.operations is not None
        assert plan.faults is not None
        assert plan.deviations is not None
        there = operations <= plan.operations and faults <= plan.faults and deviations <= plan.deviations
        return [f"lost job: one of {len(plan.operations)}"] if there else []

    return World(violations)


@given(
    st.frozensets(st.sampled_from(OPERATIONS), max_size=6),
    st.frozensets(st.sampled_from(FAULTS), max_size=4),
    st.frozensets(st.sampled_from(DEVIATIONS), max_size=4),
)
def test_exactly_what_a_failure_needs_is_left(
    operations: frozenset[int], faults: frozenset[str], deviations: frozenset[int]
) -> None:
    run = needing(operations, faults, deviations)
    plan, report = shrink(run(Plan(7)), run)
    assert plan == Plan(7, operations, faults, deviations)
    assert report.plan == plan
    assert report.violations == [f"lost job: one of {len(operations)}"]


@given(st.integers(0, 1 << 32))
def test_without_any_one_member_of_what_is_left_the_run_does_not_fail_even_if_failing_is_whimsical(salt: int) -> None:
    def violations(plan: Plan) -> list[str]:
        assert plan.operations is not None
        assert plan.faults is not None
        assert plan.deviations is not None
        parts = (sorted(plan.operations), sorted(plan.faults), sorted(plan.deviations))
        whim = random.Random(f"{salt}{parts}").random()
        return ["whim"] if sum(len(part) for part in parts) > 180 or whim < 0.4 else []

    run = World(violations)
    first = run(Plan(7))
    plan, _ = shrink(first, run, tries=100_000)
    assert run(plan).violations == ["whim"]
    assert plan.operations is not None
    assert plan.faults is not None
    assert plan.deviations is not None
    smaller = [replace(plan, operations=plan.operations - {number}) for number in plan.operations]
    smaller += [replace(plan, faults=plan.faults - {fault}) for fault in plan.faults]
    smaller += [replace(plan, deviations=plan.deviations - {number}) for number in plan.deviations]
    assert [one for one in smaller if run(one).violations] == []


def test_faults_that_are_numbered_by_their_chances_follow_the_operations_they_hit() -> None:
    """In the real world too, a fault's number counts its chances: without an operation it hits a later one."""

    def run(plan: Plan) -> Report:
        choices = Choices(plan, rates={"conflict": 0.3})
        violations = []
        for number in OPERATIONS:
            if choices.operation() and choices.fault("conflict") is not None and number == 50:
                violations = ["lost job: number 50"]
        return replace(
            report_of(plan, *violations), operations=choices.operations, faults=choices.faults, deviations=[]
        )

    failing = next(report for report in map(run, map(Plan, range(100))) if report.violations)
    assert len(failing.operations) == 60
    plan, report = shrink(failing, run)
    assert report.violations == ["lost job: number 50"]
    assert plan.operations is not None
    assert 50 in plan.operations
    assert len(plan.operations) < 25, "and not all 50 that were before it"
    assert len(report.faults) == 1


@pytest.mark.parametrize("tries", [0, 1, 10, 40])
def test_no_more_plans_are_tried_than_allowed_and_the_best_so_far_is_the_answer(tries: int) -> None:
    run = needing(frozenset([3, 40]), frozenset(["kill:2"]), frozenset([5, 77]))
    told: list[str] = []
    plan, report = shrink(report_of(Plan(7), "lost job: it"), run, tries=tries, tell=told.append)
    assert len(run.plans) <= tries + 1, "one more drops what the best run did not use"
    assert report.violations
    assert report.plan == plan
    assert run(plan).violations
    assert told[-1] == "the search ends here: its budget is spent"


def test_what_does_not_fail_again_is_returned_as_it_was() -> None:
    run = World(lambda plan: [])
    told: list[str] = []
    first = report_of(Plan(7), "lost job: it")
    assert shrink(first, run, tell=told.append) == (Plan(7), first)
    assert len(told) == 1
    assert told[0].startswith("not shrunk: ")
