"""Defects of the service and of those who wait for jobs in it."""

from __future__ import annotations

from jobs_service.service import JobsService
from jobs_service.service.abandoned_jobs import AbandonedJobs
from jobs_service.service.acceptor import Acceptor
from jobs_service.service.lifecycle import Lifecycle
from jobs_service.service.waiting_workers import WaitingWorkers
from tests.simulation.mutants.mutant import Defect, Mutant, changed, together


def a_job_that_comes_too_late_stays_locked() -> Defect:
    """A job that was accepted in the very moment in which its caller was canceled is not given back."""
    return changed(Acceptor.attempt, ("self._abandoned.give_back_all(answer.result())", "pass"))


def the_turn_is_not_passed_on() -> Defect:
    """A worker that is canceled as its turn comes leaves those behind it waiting."""
    return together(
        changed(WaitingWorkers._queue, ("line.wake(1)  # canceled as its turn came", "pass")),
        changed(WaitingWorkers.get, ("line.wake(1)", "pass")),
    )


def the_next_in_line_are_not_woken() -> Defect:
    """Who got a job leaves without a word to those who wait behind."""
    return changed(WaitingWorkers.get, ("line.wake(2)", "pass"))


def nobody_wakes_for_scheduled_jobs() -> Defect:
    """A waiting worker sleeps on when the next scheduled job comes due."""
    return changed(WaitingWorkers._watch, ("asyncio.timeout(due_in)", "asyncio.timeout(None)"))


def closing_does_not_wait_for_operations() -> Defect:
    """The service is left while its transactions are under way."""
    return changed(Lifecycle._leave, ("        await self._operations.drain()\n", ""))


def closing_does_not_wait_for_what_is_given_back() -> Defect:
    """The service is left before jobs that nobody got are given back."""
    return changed(AbandonedJobs.until_given_back, ("while self._releases:", "while False:"))


def stop_and_remove_does_not_wait() -> Defect:
    """A running job is asked to stop, and taken for removed."""
    return changed(JobsService.stop_and_remove, ("while removal is Removal.CANCELED:", "while False:"))


ALL = (
    Mutant(a_job_that_comes_too_late_stays_locked, "calm", ("racers", "batches", "overseers", "closers")),
    Mutant(the_turn_is_not_passed_on, "calm", ("idlers", "overseers", "closers")),
    Mutant(the_next_in_line_are_not_woken, "calm", ("idlers", "overseers", "closers")),
    Mutant(nobody_wakes_for_scheduled_jobs, "calm", ("idlers", "type keepers", "overseers", "closers")),
    Mutant(closing_does_not_wait_for_operations, "calm", ("creators", "visitors", "closers")),
    Mutant(closing_does_not_wait_for_what_is_given_back, "calm", ("creators", "visitors", "closers")),
    Mutant(stop_and_remove_does_not_wait, workloads=("creators", "stoppers", "workers")),
)
