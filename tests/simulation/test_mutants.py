"""That the simulation finds bugs: every mutant is caught within 500 seeds, and a mutant is what it says."""

from __future__ import annotations

import inspect
from logging import WARNING
from types import SimpleNamespace

import pytest

from jobs_service.layer.unit import Unit
from jobs_service.testing import Plan
from tests.simulation.mutants import ALL, Mutant
from tests.simulation.mutants.mutant import changed
from tests.simulation.run import Report, Run, simulate

MOST_SEEDS = 500
KNOWN_SEEDS = {
    "accept claims nothing that it takes": 22,
    "accept reads records by snapshot": 80,
    "accept reads the queue by snapshot": 14,
    "accept claims no part of a queue that it empties": 34,
    "the activity monitor reads by snapshot": 252,
    "scheduled entry is not cleared": 3,
    "update is no activity": 6,
    "update keeps its seq": 6,
    "finish ignores cancel": 5,
    "max priority leaves its own out": 10,
    "a changed timeout is measured with old samples": 14,
    "scheduled jobs are not looked at": 22,
    "one sample per timeout": 84,
    "removed jobs are not told of": 178,
    "only the first batch is looked at": 3,
    "activity is watched after it was read": 3,
    "a dead monitor is not noticed": 56,
    "a job that comes too late stays locked": 18,
    "the turn is not passed on": 14,
    "the next in line are not woken": 16,
    "nobody wakes for scheduled jobs": 17,
    "only the dead child is restarted": 13,
    "the death of a linked task is not noticed": 175,
    "ranges are no conflict": 14,
    "a transaction does not see its own clears": 13,
    "a slot is not given back": 12,
    "a taken over job is ended with force": 3,
    "the cancel watch is made after the look": 9,
    "one attempt too many": 6,
    "discarded jobs are tried again": 10,
    "pause is read by snapshot": 115,
    "a missed tick is not made up for": 34,
    "a mark that was removed says that nothing happened": 79,
    "parts of the notes are in another order": 16,
    "retries count from the start of the run": 16,
    "delays go by the loops clock": 19,
    "snoozes count from the start of the run": 60,
}
"""Seeds that have shown those mutants that the first seeds do not show, or slowly. They only save time: one that does
so no longer, after a change of the service, is passed over for all seeds in turn (a mutant's test prints the one that
shows it; `-rP` has pytest show that of a test that passed)."""
HANG = 300  # seconds; only ends a run that would never end
BROKEN = ("NameError", "UnboundLocalError", "ImportError")
"""What a mutant raises that is no defect of the service, but nonsense."""

pytestmark = pytest.mark.timeout(HANG)


class UntilFailure(Run):
    """A run that ends as soon as anything is wrong."""

    def complain(self, violation: str) -> None:
        super().complain(violation)
        self.world.loop.stop()


def first_failure(mutant: Mutant) -> Report | None:
    """Return the first run that a mutant makes fail, in the weather and with the workloads in which it is to show."""
    known = [KNOWN_SEEDS[mutant.name]] if mutant.name in KNOWN_SEEDS else []
    with mutant.defect():
        for seed in (*known, *range(MOST_SEEDS)):
            report = UntilFailure(Plan(seed), mutant.profile, mutant.workloads, WARNING, mutant.rates).report()
            if report.violations:
                print(f"seed {seed}")
                return report
    return None


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    report = first_failure(mutant)
    assert report is not None, f"{mutant.name} survives {MOST_SEEDS} seeds: {mutant.defect.__doc__}"
    assert not [line for line in [*report.violations, *report.events] if any(name in line for name in BROKEN)]
    again = simulate(report.plan, profile=mutant.profile, workloads=mutant.workloads, rates=mutant.rates)
    assert again.violations == []


def test_every_mutant_has_a_name_of_its_own_and_says_what_is_wrong() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL)
    assert KNOWN_SEEDS.keys() <= {mutant.name for mutant in ALL}
    assert max(KNOWN_SEEDS.values()) < MOST_SEEDS
    for mutant in ALL:
        assert (inspect.getdoc(mutant.defect) or "").endswith("."), mutant.name


def test_a_defect_is_gone_when_it_is_left() -> None:
    original = Unit.new_locks.__code__
    with changed(Unit.new_locks, ("self.sources.token(count * LOCK_BYTES)", "made"), made=b"l"):
        assert Unit.new_locks.__code__ is not original
        assert Unit.new_locks(SimpleNamespace(instance=b""), 1) == [b"l"]  # type: ignore[arg-type]
    assert Unit.new_locks.__code__ is original
    assert "made" not in Unit.new_locks.__globals__


@pytest.mark.parametrize("words", ["no such words", "self"])
def test_a_mutant_whose_words_are_not_there_once_is_refused(words: str) -> None:
    with pytest.raises(LookupError, match="not once"):
        changed(Unit.woke, (words, "nothing"))
