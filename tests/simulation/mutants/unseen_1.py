"""Slips in the layer, the stores, copying, supervision and batching, made without a look at checks or other slips."""

from __future__ import annotations

import inspect

from jobs_service.batching import pipelined
from jobs_service.batching.operations import SharedAccept
from jobs_service.copying.target import Target
from jobs_service.layer import activity, awake_types, counters, creation, paging, process_rows
from jobs_service.layer.loaded_jobs import LoadedJobs
from jobs_service.layer.touched_types import TouchedTypes
from jobs_service.layer.transaction import JobTransaction
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.store.held_writes import HeldBack
from jobs_service.store.lmdb.responder import Responder
from jobs_service.store.lmdb.thread_calls import Deadlines
from jobs_service.store.memory import MemoryStore
from jobs_service.supervision.intensity import RestartIntensity
from tests.simulation.mutants.mutant import Defect, Mutant, changed

# The layer


def what_is_undone_within_a_transaction_stays_counted() -> Defect:
    """A failed `add_many` whose error a transaction function catches stays in the totals, beside other jobs' adds."""
    return changed(
        inspect.unwrap(UnitOfWork.all_or_nothing),
        ("{keys: tally.copy() for keys, tally in self._tallies.items()}", "self._tallies.copy()"),
    )


def a_scheduled_job_keeps_its_time_when_it_is_resubmitted_for_another() -> Defect:
    """A waiting job is taken for unmoved if it waits in the same index as before, so that its old time stays."""
    return changed(
        creation._resubmit,
        (
            "(priority, run_at) == (record.priority, record.run_at)",
            "(priority, unit.place_for(run_at)) == (record.priority, record.place)",
        ),
    )


def a_type_that_a_transaction_removes_still_takes_its_jobs() -> Defect:
    """A transaction that has added a job goes on adding jobs of the type that it removes in between."""
    return changed(activity.clear_type_timeout, ("    unit.existing_types.discard(keys.timeout)\n", ""))


def a_transaction_goes_on_with_the_retention_that_it_has_read() -> Defect:
    """Jobs that finish after `set_retention` in the same transaction are kept as one before it was."""
    return changed(TouchedTypes.set_retention, ("        self.retentions[keys.retention] = retention\n", ""))


def a_retention_that_was_there_before_its_handler_is_overwritten() -> Defect:
    """What an operator has set before a handler's first start gives way to the handler's own option."""
    return changed(activity.declare, ("retention not in (None, wanted.retention)", "retention != wanted.retention"))


def of_jobs_that_were_alive_in_one_commit_only_the_first_is_lost() -> Defect:
    """The range of silent jobs ends behind the first one of a commit: the others stay until something else happens."""
    return changed(activity._until, ('_LAST_ORDER + b"\\x00"', 'b"\\x00\\x00\\x00"'))


def throughput_leaves_its_last_interval_out() -> Defect:
    """The row of the last minute, or hour, is where the read ends: nothing has happened in it."""
    return changed(counters.intervals, ("head + _number(last) + AFTER", "head + _number(last)"))


def the_first_job_behind_a_page_is_on_none() -> Defect:
    """A page that is full says that it has ended at the job behind its last one."""
    return changed(
        paging.page,
        (
            "            if len(jobs) == most or size > _MOST_BYTES:\n"
            "                return Page(jobs, last)\n"
            "            last = key[start:]\n",
            "            last = key[start:]\n"
            "            if len(jobs) == most or size > _MOST_BYTES:\n"
            "                return Page(jobs, last)\n",
        ),
    )


def of_jobs_that_are_read_together_one_type_is_asked_for_followers() -> Defect:
    """Operations on several types share a transaction, and only followers of the first one's type are told."""
    return changed(LoadedJobs.prefetch, ("if keys is not latest:", "if latest is None:"))


def a_type_that_wakes_up_keeps_the_row_that_it_sleeps() -> Defect:
    """A type that wakes up before its alarm is taken for asleep once more later: scheduled and finished jobs stay."""
    return changed(awake_types._forget_alarm, ("    transaction.clear(keys.asleep)\n", ""))


def of_several_accepts_of_a_transaction_only_the_last_is_given_back() -> Defect:
    """A transaction whose caller has gone leaves the jobs of its earlier accepts locked until their timeout."""
    return changed(JobTransaction.accept_many, ("self._accepted += taken", "self._accepted = taken"))


def a_late_heartbeat_lists_a_process_that_has_left() -> Defect:
    """A heartbeat that is under way when the process ends writes its row again, and it is silent for a day."""
    return changed(process_rows.write, ("    unit.transaction.add_read_conflict_key(key)\n", ""))


# The stores


def a_block_reads_the_queue_as_it_was_before_it() -> Defect:
    """Snapshot reads of a block do not see its own writes: a second accept finds the job of the first one only."""
    return changed(
        HeldBack.snapshot, ("_Reads(self._transaction.snapshot, self._writes)", "self._transaction.snapshot")
    )


def a_read_that_fails_keeps_its_state_for_ever() -> Defect:
    """The memory store does not end a read whose function raises, and keeps every later change for it."""
    return changed(
        MemoryStore.read,
        (
            "            try:\n"
            "                result = self._run(function, transaction, loop)\n"
            "                transaction.commit()\n"
            "                return result\n"
            "            finally:\n"
            "                transaction.end()\n",
            "            result = self._run(function, transaction, loop)\n"
            "            transaction.commit()\n"
            "            return result\n",
        ),
    )


def watches_of_callers_who_have_gone_stay_in_the_store() -> Defect:
    """The embedded store does not drop the watch of a read whose caller was canceled as the answer came."""
    return changed(Responder._abandon, ("                watch.cancel()", "                continue"))


def behind_a_call_that_was_late_no_other_is() -> Defect:
    """After the embedded store has failed a call for its time, calls that wait already do so until another comes."""
    return changed(
        Deadlines._expire,
        (
            "        if self._waiting:\n"
            "            self._timer = self._loop.call_at(self._waiting[0].deadline, self._expire)\n",
            "",
        ),
    )


# Copying, supervision, batching


def a_forced_copy_counts_jobs_as_skipped_that_it_has_copied() -> Defect:
    """Jobs that an earlier phase has copied are counted again, as skipped ones, when the rest is."""
    return changed(
        Target.write,
        ("elif following.phase is not Phase.REST or not _copied_before_rest(job.record):", "else:"),
    )


def restarts_of_long_ago_count() -> Defect:
    """A supervisor gives up after so many restarts, however long they lie apart."""
    return changed(
        RestartIntensity.admit,
        (
            "        while self._times and self._times[0] < now - self.period:\n            self._times.popleft()\n",
            "",
        ),
    )


def who_shares_an_accept_that_was_halved_stops_waiting() -> Defect:
    """Workers who get none of a shared accept's jobs, since one transaction held no more, are told that time is up."""
    return changed(SharedAccept.run, ("EmptyQueue(None, None) if limit == self._most else []", "[]"))


def a_batch_takes_effect_although_the_one_before_has_failed() -> Defect:
    """The transactions of `add_many` overlap without waiting for each other: jobs behind one that exists are added."""
    return changed(
        pipelined._overlapped,
        ("transact_after(under_way[0], operation) if under_way else transact(operation)", "transact(operation)"),
    )


ALL = tuple(
    map(
        Mutant,
        (
            what_is_undone_within_a_transaction_stays_counted,
            a_scheduled_job_keeps_its_time_when_it_is_resubmitted_for_another,
            a_type_that_a_transaction_removes_still_takes_its_jobs,
            a_transaction_goes_on_with_the_retention_that_it_has_read,
            a_retention_that_was_there_before_its_handler_is_overwritten,
            of_jobs_that_were_alive_in_one_commit_only_the_first_is_lost,
            throughput_leaves_its_last_interval_out,
            the_first_job_behind_a_page_is_on_none,
            of_jobs_that_are_read_together_one_type_is_asked_for_followers,
            a_type_that_wakes_up_keeps_the_row_that_it_sleeps,
            of_several_accepts_of_a_transaction_only_the_last_is_given_back,
            a_late_heartbeat_lists_a_process_that_has_left,
            a_block_reads_the_queue_as_it_was_before_it,
            a_read_that_fails_keeps_its_state_for_ever,
            watches_of_callers_who_have_gone_stay_in_the_store,
            behind_a_call_that_was_late_no_other_is,
            a_forced_copy_counts_jobs_as_skipped_that_it_has_copied,
            restarts_of_long_ago_count,
            who_shares_an_accept_that_was_halved_stops_waiting,
            a_batch_takes_effect_although_the_one_before_has_failed,
        ),
    )
)
"""Every slip here."""
