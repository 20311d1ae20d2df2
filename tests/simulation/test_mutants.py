"""That the simulation finds bugs: known seeds show the deliberate defects, and a defect is what it says."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.runner import execution
from tests.shares import share
from tests.simulation.mutants import EVERY, SLIPS, UNSEEN, Mutant, misfits
from tests.simulation.mutants.mutant import Change, changed
from tests.simulation.run import simulate
from tests.simulation.score import BROKEN, first_failure, known_seeds

HANG = 300  # seconds; only ends a run that would never end
IS_USUAL = sys.version_info[:2] == (3, 11)
MORE_SEEDS = 40 if IS_USUAL else 1000
"""How many are tried when a known seed shows its mutant no longer: the service or the simulation has changed.

The seeds were found with Python 3.11. Another version may run tasks in another order; a seed is another run there.
"""

SELDOM = 300
"""Mutants that no seed before shows are not looked for with another version of Python."""

KNOWN = known_seeds()
SEED_OF = {**KNOWN["usual"], **KNOWN["focused"], **KNOWN["unseen"]}
PARTS = 24
"""In which the mutants are tried."""

pytestmark = pytest.mark.timeout(HANG)

# A run that ends with the first violation leaves coroutines that nobody has begun.
ends_early = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")


def shown(mutant: Mutant, seeds: Sequence[int]) -> str | None:
    """Return what is wrong with how seeds show a mutant, "" where all is well; None if none of them shows it."""
    focused = mutant.name in KNOWN["focused"]
    try:
        report = first_failure(mutant, seeds, focused=focused)
    except LookupError as error:
        return f"{mutant.name!r}: {error}"
    if report is None:
        return None
    nonsense = [line for line in [*report.violations, *report.events] if any(name in line for name in BROKEN)]
    if not nonsense:
        of_focused = {"profile": mutant.profile, "workloads": mutant.workloads, "rates": mutant.rates}
        nonsense = simulate(report.plan, **(of_focused if focused else {})).violations  # type: ignore[arg-type]
    return f"{mutant.name!r}, seed {report.plan.seed}: {nonsense[0]}" if nonsense else ""


@ends_early
@pytest.mark.parametrize("part", share(range(PARTS), 24))
def test_mutants_are_caught(part: int) -> None:
    """Three fifths of each part show: by their seeds or, as changes of the service make other runs of them, by others.

    The run that shows a mutant is whole without it.
    """
    mutants = [mutant for mutant in (*EVERY, *UNSEEN) if mutant.name in SEED_OF][part::PARTS]
    if not IS_USUAL:
        mutants = [mutant for mutant in mutants if SEED_OF[mutant.name] < SELDOM]
    found = {mutant.name: shown(mutant, [SEED_OF[mutant.name]]) for mutant in mutants}
    for mutant in mutants:
        if 5 * sum(said == "" for said in found.values()) >= 3 * len(mutants):
            break
        if found[mutant.name] is None:
            found[mutant.name] = shown(mutant, range(MORE_SEEDS))
    assert [said for said in found.values() if said] == []
    assert 5 * sum(said == "" for said in found.values()) >= 3 * len(mutants), (
        f"{found}; scripts/simulate --mutants NAME ... --seeds 3000 looks for others"
    )


def test_every_mutant_fits_the_source() -> None:
    """Its words are in its function once. All that do not fit are told at once."""
    assert not misfits(), "\n".join(misfits())


def test_every_mutant_has_a_name_of_its_own_and_says_what_is_wrong() -> None:
    names = {mutant.name for mutant in EVERY}
    assert len(names | {mutant.name for mutant in UNSEEN}) == len(EVERY) + len(UNSEEN)
    assert KNOWN["usual"].keys() | KNOWN["focused"].keys() <= names
    assert not KNOWN["usual"].keys() & KNOWN["focused"].keys()
    assert all(mutant.doc.endswith(".") for mutant in (*EVERY, *UNSEEN))
    assert not [slip.name for slip in SLIPS if slip.has_runs_of_its_own]


def test_a_defect_is_gone_when_it_is_left() -> None:
    original = UnitOfWork.new_locks.__code__
    with changed(UnitOfWork.new_locks, ("self.sources.token(count * LOCK_BYTES)", "made"), made=b"l"):
        assert UnitOfWork.new_locks.__code__ is not original
        assert UnitOfWork.new_locks(SimpleNamespace(instance=b""), 1) == [b"l"]  # type: ignore[arg-type]
    assert UnitOfWork.new_locks.__code__ is original
    assert "made" not in UnitOfWork.new_locks.__globals__


def test_what_a_function_keeps_is_forgotten_before_and_after_a_defect() -> None:
    kept = execution._succeeded_with_nothing
    usual = kept(20)
    with changed(execution._succeeded, ("RunReport(json, None", "RunReport(None, None")):
        assert kept(20) != usual
    assert kept(20) == usual


@pytest.mark.parametrize("words", ["no such words", "self"])
def test_a_mutant_whose_words_are_not_there_once_is_refused(words: str) -> None:
    with pytest.raises(LookupError, match="not once"):
        changed(UnitOfWork.woke, (words, "nothing"))


@pytest.mark.parametrize("of", ["jobs_service.nowhere:nothing", "jobs_service.layer.queue:nothing"])
def test_a_mutant_whose_function_is_gone_is_refused(of: str) -> None:
    with pytest.raises(LookupError, match=f"there is no {of}"):
        Mutant("mutant", "", (Change(of, ()),)).defect()
