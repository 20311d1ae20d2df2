"""The draws of a run: each concern has its own, and what is left out leaves those of others as they were."""

from __future__ import annotations

import pytest

from jobs_service.testing import Choices, Plan

RATES = {"conflict": 0.3, "stale": 0.6}


def draw(plan: Plan, rounds: int = 200) -> tuple[Choices, list[object]]:
    """Draw everything there is, over and over, and return what came."""
    choices = Choices(plan, rates=RATES, disorder=0.5)
    drawn: list[object] = []
    for _ in range(rounds):
        drawn += [choices.fault("conflict"), choices.fault("stale"), choices.pick(3), choices.operation()]
        drawn.append(choices.stream("work").random())
    return choices, drawn


def test_what_is_said_to_have_happened_is_what_was_drawn() -> None:
    choices, drawn = draw(Plan(1))
    conflicts, stale, picks = drawn[0::5], drawn[1::5], drawn[2::5]
    assert choices.faults != []
    assert sorted(choices.faults) == sorted(
        [f"conflict:{number}" for number, fault in enumerate(conflicts) if fault is not None]
        + [f"stale:{number}" for number, fault in enumerate(stale) if fault is not None]
    )
    assert choices.deviations == [number for number, pick in enumerate(picks) if pick != 0]
    assert choices.operations == list(range(200))


@pytest.mark.parametrize("place", [0, 5, -1])
def test_a_fault_left_out_leaves_everything_else_as_it_was(place: int) -> None:
    whole, drawn = draw(Plan(3))
    left_out = whole.faults[place]
    part, again = draw(Plan(3, faults=frozenset(whole.faults) - {left_out}))
    assert part.faults == [fault for fault in whole.faults if fault != left_out]
    kind, number = left_out.split(":")
    changed = 5 * int(number) + list(RATES).index(kind)
    assert drawn[changed] is not None
    assert again == [*drawn[:changed], None, *drawn[changed + 1 :]]


@pytest.mark.parametrize("place", [0, 5, -1])
def test_a_deviation_left_out_leaves_everything_else_as_it_was(place: int) -> None:
    whole, drawn = draw(Plan(3))
    left_out = whole.deviations[place]
    part, again = draw(Plan(3, deviations=frozenset(whole.deviations) - {left_out}))
    assert part.deviations == [number for number in whole.deviations if number != left_out]
    changed = 5 * left_out + 2
    assert again == [*drawn[:changed], 0, *drawn[changed + 1 :]]


def test_in_a_calm_nothing_hits_any_more() -> None:
    choices = Choices(Plan(1), rates={"conflict": 1.0})
    assert choices.fault("conflict") is not None
    choices.calm()
    assert choices.fault("conflict") is None
    assert choices.faults == ["conflict:0"]
