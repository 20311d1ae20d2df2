"""Defects of the simulated store, and of what all stores are made of."""

from __future__ import annotations

from typing import Any

from jobs_service.store.commit_marks import Marks
from jobs_service.store.fdb import errors as fdb_errors
from jobs_service.store.mvcc import Versions
from jobs_service.store.read_your_writes import BufferedTransaction
from jobs_service.store.write_log import outcome
from jobs_service.testing.cluster import SimulatedStore
from tests.simulation.mutants.mutant import Defect, Mutant, changed, together


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
    return changed(SimulatedStore._outcome, ("if stamp is None:", "if True:"))


def an_unknown_commit_counts_as_done() -> Defect:
    """A commit of which nobody knows is taken for one that has happened."""
    return changed(
        SimulatedStore._outcome,
        ("stamp = await self._find_out(mark, transaction.version)", 'stamp = b"\\x00" * 10'),
    )


def a_commit_whose_time_was_up_is_done_again() -> Defect:
    """Only those errors of a commit count as unknown of which the client says so itself."""
    return changed(
        fdb_errors.may_have_committed,
        ("code not in _INSTEAD_OF_A_COMMIT and code not in _CLIENT_REFUSALS", "code in (1021, 1039)"),
    )


def no_tombstone_is_written() -> Defect:
    """A commit that is not found at once is taken for one that will not happen, although it may be on its way."""
    return changed(SimulatedStore._find_out, ("await self._submit_own(transaction)", "pass"))


def a_commit_does_not_conflict_with_its_tombstone() -> Defect:
    """A tombstone is written, but a commit that is on its way does not mind it."""
    return changed(SimulatedStore._commit, ('        transaction.conflicts.add(mark.key, mark.key + b"\\x00")\n', ""))


def every_mark_is_stale() -> Defect:
    """Marks are removed while somebody is going to look for them."""
    return changed(Marks.stale, ("version - version_of(value) > self._lifetime", "True"))


def a_mark_that_was_removed_says_that_nothing_happened() -> Defect:
    """However late somebody looks for a mark, a commit without one counts as one that did not happen."""
    return changed(Marks.stamp_of, ("if value is None and ", "if False and "))


def equal_memories_leave_equal_marks() -> Defect:
    """A mark is named by a token of its process and a number, both of which a clone of the process has as well."""
    return together(
        changed(Marks.new, ("self._draw(_RANDOM_BYTES)", "by_number(self)"), by_number=by_number),
        changed(Marks.cloned, ("copy.copy(self)", "by_number(self) and copy.copy(self)")),
    )


def by_number(marks: Any) -> bytes:
    """Name a mark by a token, which is drawn once, and a number."""
    if not hasattr(marks, "token"):
        marks.token = marks._draw(12)
    name: bytes = marks.token + marks.made.to_bytes(4, "big")
    return name


def the_handle_is_the_applications() -> Defect:
    """The store's transactions have the options that an application sets on its own handle."""
    return changed(
        SimulatedStore.open, ("self.handle = Handle()", "self.handle = self.cluster.shared_handle(self.process)")
    )


def atomic_adds_only_set() -> Defect:
    """A counter that is added to stays the same, and nobody who watches it is woken."""
    return changed(
        outcome,
        ("added(written[key] if key in written else get(key), argument)", "argument"),
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
    Mutant(a_commit_whose_time_was_up_is_done_again, rates={"commit_timed_out": 0.2}),
    Mutant(no_tombstone_is_written, rates={"commit_timed_out": 0.2}),
    Mutant(a_commit_does_not_conflict_with_its_tombstone, rates={"commit_timed_out": 0.2}),
    Mutant(every_mark_is_stale, rates={"commit_unknown": 0.2, "slow_answer": 0.3, "sweep": 0.6}),
    Mutant(
        a_mark_that_was_removed_says_that_nothing_happened,
        "stormy",
        rates={"commit_unknown": 0.3, "slow_answer": 0.5, "sweep": 0.8},
    ),
    Mutant(equal_memories_leave_equal_marks, "calm", rates={"commit_unknown": 0.2, "commit_lost": 0.3, "clone": 0.8}),
    Mutant(the_handle_is_the_applications, "calm", rates={"options": 0.8}),
    Mutant(atomic_adds_only_set),
    Mutant(a_transaction_does_not_see_its_own_clears, "calm", ("creators", "crowds", "closers")),
)
