"""Defects of the simulated store, and of what all stores are made of."""

from __future__ import annotations

from jobs_service.store.buffer import BufferedTransaction
from jobs_service.store.versions import Versions
from jobs_service.testing.cluster import SimulatedStore
from tests.simulation.mutants.mutant import Defect, Mutant, changed


def ranges_are_no_conflict() -> Defect:
    """What was written into a range that a transaction has read is no conflict."""
    return changed(Versions.conflict, ("elif any(", "elif False and any("))


def cleared_ranges_and_single_keys_are_no_conflict() -> Defect:
    """A key that a transaction has read may change before it commits."""
    return changed(Versions.conflict, ("if begin in before and", "if False and"))


def versionstamps_are_used_twice() -> Defect:
    """Every other commit has the versionstamp of the one before."""
    return changed(Versions.apply, ("(self.version + 1).to_bytes", "((self.version + 1) & ~1).to_bytes"))


def an_unknown_commit_is_done_again() -> Defect:
    """A function whose commit has happened, which nobody knew, is run again."""
    return changed(SimulatedStore._commit, ("if stamp is None:", "if True:"))


def an_unknown_commit_counts_as_done() -> Defect:
    """A commit of which nobody knows is taken for one that has happened."""
    return changed(
        SimulatedStore._commit,
        ("stamp = await self._find_out(call, mark)", 'stamp = b"\\x00" * 10'),
    )


def atomic_adds_only_set() -> Defect:
    """A counter that is added to stays the same, and nobody who watches it is woken."""
    return changed(
        Versions._outcome,
        ("added(written[key] if key in written else self._values.get(key), argument)", "argument"),
    )


def a_transaction_does_not_see_its_own_clears() -> Defect:
    """A range that a transaction reads shows what it has cleared before."""
    return changed(BufferedTransaction.get_range_now, ("self._merged(begin, end, reverse) if self.log else ", ""))


ALL = (
    Mutant(ranges_are_no_conflict, workloads=("creators", "resubmitters", "workers", "crowds")),
    Mutant(cleared_ranges_and_single_keys_are_no_conflict),
    Mutant(versionstamps_are_used_twice),
    Mutant(an_unknown_commit_is_done_again),
    Mutant(an_unknown_commit_counts_as_done),
    Mutant(atomic_adds_only_set),
    Mutant(a_transaction_does_not_see_its_own_clears, "calm", ("creators", "crowds", "closers")),
)
