"""Defects of jobs that leave with their end, and of what their followers are told."""

from __future__ import annotations

from jobs_service.actors import notifier
from jobs_service.actors.activity_monitor import ActivityMonitor
from jobs_service.actors.notifier import Notifier
from jobs_service.layer import changes, running_jobs
from jobs_service.layer.touched_types import TouchedTypes
from jobs_service.layer.unit_of_work import UnitOfWork
from tests.simulation.mutants.mutant import Defect, Mutant, changed


def the_end_of_a_job_that_leaves_is_forgotten() -> Defect:
    """Nothing is left of a job that leaves with its end, whoever waits for it."""
    return changed(TouchedTypes._write_last, ("values.append((key, *record.around_stamp()))", "pass"))


def who_waits_for_a_job_that_leaves_is_told_that_it_is_gone() -> Defect:
    """A notifier does not look for the last record of a job that has none any more."""
    return changed(notifier._read_all, ("if raw is None and place", "if False"))


def who_comes_too_late_is_told_how_a_job_has_ended() -> Defect:
    """Who subscribes to a job that has left with its end is told of that, as long as its last record is there."""
    return changed(Notifier._report_to, ("if target.knows_it else None", ""))


def few_who_wait_do_not_follow_a_type_whose_jobs_leave() -> Defect:
    """A notifier of a few jobs reads their records only, also where they leave with their end."""
    return changed(
        Notifier._report,
        ("        self._leaves = (", "        leaves = ("),
    )


def nobody_is_told_that_jobs_leave_from_now_on() -> Defect:
    """Who has jobs leave with their end does not tell those who wait for some already."""
    return changed(TouchedTypes.set_retention, ("if retention.lets_leave:", "if False:"))


def last_records_are_never_removed() -> Defect:
    """The last records of jobs that have left stay for ever."""
    return changed(ActivityMonitor._drop_unread, ("if now.has_left and", "if False and"))


def a_last_record_outlives_a_later_job_of_the_same_id() -> Defect:
    """A job that is removed is told of as an earlier one of its id that had left with its end."""
    return changed(TouchedTypes._write_last, ("self.transaction.clear(key)", "pass"))


def a_job_that_leaves_is_counted_for_ever() -> Defect:
    """A job that leaves with its end counts as running."""
    return changed(UnitOfWork.flush, ("if counted is not None:", "if counted is not None and entry not in self._left:"))


def a_job_that_leaves_with_its_end_stays() -> Defect:
    """A job that is not to be kept is finished, and expires some time later."""
    return changed(running_jobs._end, ("if keep == 0:", "if keep is None:"))


def what_was_removed_is_told_of_as_it_had_ended() -> Defect:
    """A job that leaves, is added again and removed in one transaction is told of as one that has left."""
    return changed(UnitOfWork.remove, ("self._left.pop(entry, None)", "pass"))


def last_records_outlive_those_who_follow() -> Defect:
    """When nobody follows a type any more, the last records of its jobs stay."""
    return changed(changes.forget, ("transaction.clear_range(keys.last, keys.last + AFTER)", "pass"))


_F = ("forgetters",)

ALL: tuple[Mutant, ...] = (
    Mutant(the_end_of_a_job_that_leaves_is_forgotten),
    Mutant(who_waits_for_a_job_that_leaves_is_told_that_it_is_gone),
    Mutant(who_comes_too_late_is_told_how_a_job_has_ended),
    Mutant(few_who_wait_do_not_follow_a_type_whose_jobs_leave, "calm", _F),
    Mutant(nobody_is_told_that_jobs_leave_from_now_on, "calm", _F),
    Mutant(last_records_are_never_removed),
    Mutant(a_last_record_outlives_a_later_job_of_the_same_id),
    Mutant(a_job_that_leaves_is_counted_for_ever),
    Mutant(a_job_that_leaves_with_its_end_stays),
    Mutant(what_was_removed_is_told_of_as_it_had_ended, "calm", _F),
    Mutant(last_records_outlive_those_who_follow),
)
