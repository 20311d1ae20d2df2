"""Slips in the layer, the stores, copying, supervision and batching, made without a look at checks or other slips."""

from __future__ import annotations

import inspect

from jobs_service.batching import group_commit
from jobs_service.batching.accept_turns import AcceptTurns
from jobs_service.copying.target import Target
from jobs_service.layer import (
    candidates,
    counters,
    creation,
    inspection,
    paging,
    queue,
    redactions,
    running_jobs,
)
from jobs_service.layer.creation import Spec
from jobs_service.layer.transaction import JobTransaction
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model.enqueueing import unique_key
from jobs_service.model.type_state import Retention
from jobs_service.store import write_log
from jobs_service.store.lmdb.watches import Watches
from jobs_service.store.memory import MemoryStore
from jobs_service.store.read_your_writes import BufferedTransaction
from jobs_service.supervision.actor import Actor
from jobs_service.supervision.intensity import RestartIntensity
from tests.simulation.mutants.mutant import Defect, Mutant, changed

# The layer


def data_cannot_be_replaced_by_none() -> Defect:
    """A waiting or finished job that is resubmitted with None as its data runs again with the data that it had."""
    return changed(Spec.applied_to, ("record.json if self.json is None else self.json", "self.json or record.json"))


def a_type_that_a_refused_batch_was_to_make_counts_as_made() -> Defect:
    """Where a transaction catches its `enqueue_many`'s error, what it enqueues then is of a type that nobody makes."""
    return changed(
        creation.enqueue_many,
        ("        unit.existing_types.difference_update(keys.timeout for keys in unmade)\n", ""),
    )


def what_is_undone_is_undone_in_the_order_in_which_it_was_done() -> Defect:
    """Of a job that a failed `add_many` has named twice the first change stays, if a transaction catches the error."""
    return changed(inspect.unwrap(UnitOfWork.all_or_nothing), ("in reversed(own)", "in own"))


def of_several_jobs_that_waited_equally_long_one_is_in_the_sum() -> Defect:
    """The average of the times that jobs waited is too small, where one transaction adds several, and one takes all."""
    return changed(counters._count_time, ("times * int(1000 * seconds)", "int(1000 * seconds)"))


def canceled_jobs_that_are_given_back_are_not_in_the_totals() -> Defect:
    """A canceled job that is released, lost or crashes is finished as canceled, but the type's totals do not say so."""
    return changed(running_jobs._give_back, ("        unit.happened(entry.keys, CANCELED)\n", ""))


def who_skips_as_many_jobs_as_there_are_finds_none() -> Defect:
    """A worker with a spread that skips just all jobs that are there gets none, and waits until another is added."""
    return changed(queue._some_of, ("if skipped and spare < skipped:", "if skipped > len(ids):"))


def a_transaction_stumbles_over_its_own_jobs_of_another_type() -> Defect:
    """A transaction that has added jobs of two types accepts none of one, if one of the other comes before it."""
    return changed(candidates._pending_here, ("            or entry.keys != keys\n", ""))


def a_prefix_does_not_find_ids_that_go_on_with_its_end() -> Defect:
    """A page of jobs by a prefix lacks those whose ids, bytes, go on with 0xff right after the prefix."""
    return changed(
        paging._range,
        (
            "head + terms.prefix, head + kept[:-1] + bytes((kept[-1] + 1,))",
            "head + terms.prefix, head + terms.prefix + AFTER",
        ),
    )


def the_most_urgent_ready_job_counts_as_the_oldest() -> Defect:
    """`oldest_ready` and `queue_state` name the first job in the queue, though a less urgent one is older."""
    return changed(inspection.queue_state, ("if oldest is None or since < oldest[0]:", "if oldest is None:"))


def equal_arguments_in_another_order_are_not_unique() -> Defect:
    """`unique=True` adds a second unfinished job where the same arguments are given in another order of their names."""
    return changed(unique_key, ("json_data.canonical(", "json_data.encode("))


def what_an_operator_hides_is_shown_again_after_a_start() -> Defect:
    """Fields that somebody has made secret by `set_redaction` are public again once the type's handler is started."""
    return changed(redactions.set_redaction, ("None if packed is None else _values(packed)[1]", "None"))


def who_waits_for_a_failure_that_is_not_kept_is_told_of_a_removal() -> Defect:
    """Where only failed jobs are kept for 0 seconds, who waits for one that fails hears that it was removed."""
    return changed(Retention.lets_leave, ("0 in self", "self.keep == 0"))


def canceled_jobs_are_not_kept_alive() -> Defect:
    """A canceled job is lost while its handler still has its grace, if that is longer than the type's timeout."""
    return changed(running_jobs.beat, ("found[-1] is not LockStatus.TAKEN", "found[-1] is LockStatus.HELD"))


def a_handler_that_gives_back_its_job_in_a_transaction_is_canceled() -> Defect:
    """A handler that releases its job in a transaction and goes on to clean up is canceled by the next heartbeat."""
    return changed(JobTransaction.release, ("        self._ending(job)\n", ""))


# Stores


def a_range_that_is_read_backwards_is_out_of_order() -> Defect:
    """A transaction that reads its own keys in reverse gets those that it has written at the wrong places."""
    return changed(
        BufferedTransaction._mixed,
        ("((own[position] > key) if reverse else (own[position] < key))", "own[position] < key"),
    )


def a_counter_that_was_removed_goes_on_from_what_it_was() -> Defect:
    """A transaction that removes a key and then adds to it leaves the old value and what it has added."""
    return changed(
        write_log.outcome,
        (
            "added(written[key] if key in written else get(key), argument)",
            "added(written.get(key) or get(key), argument)",
        ),
    )


def who_watches_another_key_is_not_woken_by_other_processes() -> Defect:
    """On the embedded store, a watch on a key that nobody watched before does not fire for other processes' commits."""
    return changed(Watches.register, ("                    self._order = None\n", ""))


def a_transaction_that_runs_again_has_its_time_again() -> Defect:
    """On the memory store a call that meets conflicts again and again does not end when the time for it is over."""
    return changed(
        MemoryStore.transact,
        (
            "            deadline = loop.time() + self._settings.transaction_timeout\n"
            "            pause = _FIRST_PAUSE\n"
            "            while True:\n",
            "            pause = _FIRST_PAUSE\n"
            "            while True:\n"
            "                deadline = loop.time() + self._settings.transaction_timeout\n",
        ),
    )


# Copying


def a_copy_makes_secrets_public() -> Defect:
    """What is secret of a type's jobs in the source of a copy is not in its target."""
    return changed(Target._open, ("            (keys.redaction, settings.redaction),\n", ""))


def a_type_stays_paused_whose_copy_was_started_over() -> Defect:
    """A copy that starts over takes the pause of the one before for an operator's: nobody gets jobs from the target."""
    return changed(
        Target._remove,
        ("                if not flags & WAS_PAUSED:\n                    transaction.clear(keys.paused)\n", ""),
    )


# Supervision


def what_an_actor_has_begun_outlives_its_crash() -> Defect:
    """When an actor crashes, its linked tasks go on beside those of the next one: two fill the same slots with jobs."""
    return changed(
        Actor._live, ("            if self._linked:\n", "            if self._linked and self._stop_requested:\n")
    )


def one_restart_fewer_is_allowed() -> Defect:
    """The service fails at the last of the restarts within a period that its settings allow."""
    return changed(
        RestartIntensity.admit, ("len(self._times) <= self.max_restarts", "len(self._times) < self.max_restarts")
    )


# Batching


def of_those_who_wait_for_their_turn_only_the_first_has_it() -> Defect:
    """Of workers that ask for jobs on different terms while accepts take turns, all but the first wait for ever."""
    return changed(
        AcceptTurns._have_turn,
        ("                self.begin(key)", "                self.begin(key)\n                break"),
    )


def who_shares_a_transaction_is_told_what_others_did_after() -> Defect:
    """Who adds a job in the same turn in which others take, enqueue or remove it gets it as these have left it."""
    return changed(group_commit._do, ("result.seen() if result.__class__ is Entry else result", "result"))


ALL = tuple(
    map(
        Mutant,
        (
            data_cannot_be_replaced_by_none,
            a_type_that_a_refused_batch_was_to_make_counts_as_made,
            what_is_undone_is_undone_in_the_order_in_which_it_was_done,
            of_several_jobs_that_waited_equally_long_one_is_in_the_sum,
            canceled_jobs_that_are_given_back_are_not_in_the_totals,
            who_skips_as_many_jobs_as_there_are_finds_none,
            a_transaction_stumbles_over_its_own_jobs_of_another_type,
            a_prefix_does_not_find_ids_that_go_on_with_its_end,
            the_most_urgent_ready_job_counts_as_the_oldest,
            equal_arguments_in_another_order_are_not_unique,
            what_an_operator_hides_is_shown_again_after_a_start,
            who_waits_for_a_failure_that_is_not_kept_is_told_of_a_removal,
            canceled_jobs_are_not_kept_alive,
            a_handler_that_gives_back_its_job_in_a_transaction_is_canceled,
            a_range_that_is_read_backwards_is_out_of_order,
            a_counter_that_was_removed_goes_on_from_what_it_was,
            who_watches_another_key_is_not_woken_by_other_processes,
            a_transaction_that_runs_again_has_its_time_again,
            a_copy_makes_secrets_public,
            a_type_stays_paused_whose_copy_was_started_over,
            what_an_actor_has_begun_outlives_its_crash,
            one_restart_fewer_is_allowed,
            of_those_who_wait_for_their_turn_only_the_first_has_it,
            who_shares_a_transaction_is_told_what_others_did_after,
        ),
    )
)
"""Every slip here."""
