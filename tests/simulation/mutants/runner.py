"""Defects of the runner, and of what it stands on: slots, heartbeats, retries, turns, ticks, pauses, retention."""

from __future__ import annotations

from typing import Any

import fdb.tuple

from jobs_service.actors.context import Context
from jobs_service.batching.operations import ManyOperations
from jobs_service.layer import activity, running_jobs
from jobs_service.layer.entry import clear_index
from jobs_service.layer.keyspace import PERIODIC
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model.type_state import Retention
from jobs_service.runner import retry_policy, schedule, ticker
from jobs_service.runner.active_runs import ActiveRuns
from jobs_service.runner.heartbeat import Heartbeat
from jobs_service.runner.run_endings import RunEndings
from jobs_service.runner.worker_pool import WorkerPool
from jobs_service.service.running_job_calls import RunningJobCalls
from jobs_service.supervision import PatientSupervisor
from tests.simulation.mutants.mutant import Defect, Mutant, changed, together

# Slots and ends


def a_slot_is_not_given_back() -> Defect:
    """A handler that has ended keeps its slot: after a while the worker pool takes no more jobs."""
    return changed(ActiveRuns._left, ("self.busy -= 1", "self.busy -= bool(run.job.attempts % 2)"))


def more_jobs_are_run_than_there_are_slots() -> Defect:
    """What runs already is not counted."""
    return together(
        changed(
            WorkerPool._fill,
            ("min(runs.free, ", "min(self.options.slots, "),
            ("runs.draining or wanted > runs.free", "runs.draining"),
        ),
        changed(ActiveRuns._begin, ("self.draining or self.busy > options.slots", "self.draining")),
    )


def drain_forgets_a_job() -> Defect:
    """One of the jobs that run when the process is asked to stop is not given back, and waits for its timeout."""
    return changed(
        ActiveRuns._stop_all,
        ("values()):\n            self.stop_run(", "values())[1:]:\n            self.stop_run("),
        ("values()):\n            if run.task", "values())[1:]:\n            if run.task"),
    )


def a_taken_over_job_is_ended_with_force() -> Defect:
    """A worker pool that has lost a job gives it back all the same, although another worker runs it now."""
    return together(
        changed(ActiveRuns.heed, ("_WHY[holding]", "StopReason.STOPPED")),
        changed(running_jobs._held, ("record.lock != lock", "record.lock is None")),
    )


def effects_are_written_before_the_job_ends() -> Defect:
    """The function of finish_with runs in a transaction of its own: a job that is run again has its effects twice."""
    return changed(
        RunningJobCalls._finish_with,
        ("return await tx.finish(job, result=UNSET if isinstance(result, Job) else result)", "return result"),
        (
            "ended = await self._transactions.transact(self, work)\n",
            "result = await self._transactions.transact(self, work)\n"
            "        ended = await self._finish(job, Ending(result=result))\n",
        ),
    )


# Keeping alive, and letting go


def the_heartbeat_skips_a_job() -> Defect:
    """One of the jobs that run is not renewed."""
    return changed(Heartbeat._renew, ("for run in runs if", "for run in runs[1:] if"))


def ends_are_neither_bounded_nor_halved() -> Defect:
    """The ends of one moment are written in one transaction, however large the records are."""
    return together(
        changed(RunEndings._send_all, ("self._batch.front(waiting, sent, _size_of)", "waiting[sent:]")),
        changed(ManyOperations.run, ("errors and unit.is_full", "False")),
        changed(ManyOperations.halve, ("return most > 1", "return False")),
    )


def a_lane_that_has_died_is_not_started_again() -> Defect:
    """The jobs of one handler wait for ever when its worker pool has crashed."""
    return changed(PatientSupervisor._child_ended, ("self._loop.call_later(pause, ", "self._loop.call_later(1e9, "))


def the_cancel_watch_is_made_after_the_look() -> Defect:
    """A job that is canceled between the look and the watch goes on until the next heartbeat."""
    return changed(
        WorkerPool._check,
        (
            "return watches[0]",
            "return await self._context.read(lambda tr: watch_of(tr, self._keys.watch_canceled))",
        ),
        watch_of=_watch_of,
    )


async def _watch_of(transaction: Any, key: bytes) -> Any:
    return transaction.watch(key)


def a_removal_by_force_tells_nobody() -> Defect:
    """The handler of a job that is gone goes on until its next heartbeat."""
    return changed(UnitOfWork.take_away, ("self._taken_away[keys] = None", "pass"))


def a_canceled_job_is_heeded_by_the_heartbeat_only() -> Defect:
    """Nobody looks when a job was canceled."""
    return changed(WorkerPool._check_part, ("self._active_runs.heed(", "zip("))


def nobody_takes_turns() -> Defect:
    """Continuous jobs keep their slots as long as they like."""
    return changed(WorkerPool._rotate, ("await self.reschedule()", "pass"))


# Retries


def a_stopped_run_counts() -> Defect:
    """A job whose runner has ended has used up an attempt."""
    return changed(running_jobs.stop, ("if anew else -1", "if anew else 0"))


def backoff_is_ignored() -> Defect:
    """A job that has crashed runs again at once."""
    return changed(retry_policy.decide, ("now + backoff(", "now + 0 * backoff("))


def one_attempt_too_many() -> Defect:
    """A job is tried again when its attempts are used up."""
    return changed(retry_policy.decide, ("attempts >= most", "attempts > most"))


def discarded_jobs_are_tried_again() -> Defect:
    """Discard is an error as any other."""
    return changed(retry_policy.decide, ("if isinstance(error, Discard):", "if False:"))


# Pauses, ticks, retention


def pause_is_read_by_snapshot() -> Defect:
    """Who accepts while a type is being paused takes jobs of a paused type."""
    return changed(UnitOfWork.is_paused, ("self.transaction.add_read_conflict_key(keys.paused)", "pass"))


def resume_wakes_nobody() -> Defect:
    """Who waits for jobs of a paused type sleeps on when it is resumed."""
    return changed(UnitOfWork.resume, ("self._woken[keys.data] = keys", "pass"))


def a_tick_is_remembered_in_another_transaction() -> Defect:
    """Two processes may add the job of the same tick, one of them when it has run already."""
    return together(
        changed(ticker.add_due, ("unit.transaction.set(key, fdb.tuple.pack((newest,)))", "pass")),
        changed(
            ticker.Ticker._tick,
            (
                "        self._tell(done)\n",
                "        await remember(self._service.context, periodic, done.last)\n        self._tell(done)\n",
            ),
            remember=_remember,
        ),
    )


async def _remember(context: Context, periodic: ticker.Periodic, last: float) -> None:
    async def remember(unit: UnitOfWork) -> None:
        key = unit.keyspace.sections[PERIODIC] + unit.keyspace.of(periodic.handler.type).packed
        unit.transaction.set(key, fdb.tuple.pack((last,)))

    await context.retried(lambda: context.transact(remember), type=periodic.handler.type)


def a_missed_tick_is_not_made_up_for() -> Defect:
    """Of all ticks that were missed only the newest gets its job."""
    return changed(schedule.due_ticks, ("if missed is Missed.ALL:", "if False:"))


def an_expired_entry_is_left() -> Defect:
    """A finished job that is resubmitted or removed stays among those that expire."""
    return changed(
        clear_index,
        ("transaction.clear(keys.expiring + pack_seconds(expires) + entry.packed_id)", "pass"),
    )


def failed_jobs_are_kept_as_others() -> Defect:
    """How long failed jobs are kept is ignored."""
    return changed(Retention.seconds, ("self.keep_failed if", "self.keep if"))


def jobs_that_expire_are_forgotten() -> Defect:
    """Nobody removes what has expired."""
    return changed(activity.remove_expired, ("expires <= until", "expires <= until - 1e6"))


_H = ("handlers",)
_P = ("handlers", "pausers")
_R = ("handlers", "retainers")

ALL = (
    Mutant(a_slot_is_not_given_back, "calm", _H),
    Mutant(more_jobs_are_run_than_there_are_slots, "calm", _H),
    Mutant(drain_forgets_a_job, "calm", ("handlers", "leavers")),
    Mutant(a_taken_over_job_is_ended_with_force, workloads=_H),
    Mutant(effects_are_written_before_the_job_ends, "calm", _H),
    Mutant(the_heartbeat_skips_a_job, "calm", _H),
    Mutant(ends_are_neither_bounded_nor_halved, "calm", _H),
    Mutant(a_lane_that_has_died_is_not_started_again, workloads=_H),
    Mutant(the_cancel_watch_is_made_after_the_look, "gusty", _H),
    Mutant(a_removal_by_force_tells_nobody, "calm", _H),
    Mutant(a_canceled_job_is_heeded_by_the_heartbeat_only, "calm", _H),
    Mutant(nobody_takes_turns, "calm", _H),
    Mutant(a_stopped_run_counts, "calm", _H),
    Mutant(backoff_is_ignored, "calm", _H),
    Mutant(one_attempt_too_many, "calm", _H),
    Mutant(discarded_jobs_are_tried_again, "calm", _H),
    Mutant(pause_is_read_by_snapshot, workloads=_P),
    Mutant(resume_wakes_nobody, "calm", _P),
    Mutant(a_tick_is_remembered_in_another_transaction, "calm", ("tickers",)),
    Mutant(a_missed_tick_is_not_made_up_for, workloads=("tickers",)),
    Mutant(an_expired_entry_is_left, "calm", _R),
    Mutant(failed_jobs_are_kept_as_others, "calm", _R),
    Mutant(jobs_that_expire_are_forgotten, "calm", _R),
)
