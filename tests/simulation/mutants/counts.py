"""Defects in what is counted of types."""

from __future__ import annotations

from jobs_service.layer import counters, entry, queue, running_jobs
from jobs_service.layer.unit_of_work import UnitOfWork
from tests.simulation.mutants.mutant import Defect, Mutant, changed


def jobs_go_on_to_be_counted_as_what_they_were() -> Defect:
    """A job that moves counts in its new state, and in its old one as well."""
    return changed(UnitOfWork.flush, ("if counted is not None:", "if counted is not None and record is None:"))


def removed_jobs_go_on_to_be_counted() -> Defect:
    """A job that is gone counts as what it was."""
    return changed(UnitOfWork.flush, ("if counted is not None:", "if counted is not None and record is not None:"))


def new_jobs_are_not_counted() -> Defect:
    """A job counts from its first move on."""
    return changed(UnitOfWork.flush, ("lanes[lane] += 1", "lanes[lane] += record.run_data is not new"))


def starts_are_not_counted() -> Defect:
    """The totals know nothing of runs that begin."""
    return changed(queue.accept, ("count_starts(unit.tally(keys), records, now)", "pass"))


def runs_that_do_not_end_their_job_are_not_counted() -> Defect:
    """The totals know nothing of jobs that are lost, given back, or to be tried again."""
    return changed(running_jobs._give_back, ("    unit.ran(entry.keys, record, event)\n", ""))


def jobs_that_wait_for_another_attempt_count_as_others() -> Defect:
    """A job whose run has crashed counts among those that are ready for the first time."""
    return changed(counters.lane_of, ("lane + AFTER_CRASH if crashed_last(record.run_data) else lane", "lane"))


def failed_jobs_stay_in_their_index() -> Defect:
    """A job that has failed, and runs again, is among the failures."""
    return changed(entry.clear_index, ("if record.outcome is Outcome.FAILED:", "if False:"))


def lanes_are_added_each_for_itself() -> Defect:
    """What is subtracted from one counter is carried over into the next."""
    return changed(
        counters._operands.__wrapped__,
        ("total += count << _LANE * lane", "total += (count & 0xFFFF_FFFF_FFFF_FFFF) << _LANE * lane"),
    )


def hours_are_added_to_minutes() -> Defect:
    """What happens is counted twice in its minute, and in no hour."""
    return changed(counters._add_intervals, ("transaction.add(keys.hours", "transaction.add(keys.minutes"))


ALL = (
    Mutant(jobs_go_on_to_be_counted_as_what_they_were),
    Mutant(removed_jobs_go_on_to_be_counted),
    Mutant(new_jobs_are_not_counted),
    Mutant(starts_are_not_counted),
    Mutant(runs_that_do_not_end_their_job_are_not_counted),
    Mutant(jobs_that_wait_for_another_attempt_count_as_others),
    Mutant(failed_jobs_stay_in_their_index),
    Mutant(lanes_are_added_each_for_itself),
    Mutant(hours_are_added_to_minutes),
)
