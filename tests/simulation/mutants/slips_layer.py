"""Slips in the layer, made without a look at what the simulation checks."""

from __future__ import annotations

from jobs_service import durations, run_data
from jobs_service.layer import (
    activity,
    awake_types,
    candidates,
    changes,
    creation,
    listing,
    queue,
    queue_counts,
    running_jobs,
    strays,
)
from jobs_service.layer.adaptive_spread import Spreading
from jobs_service.layer.creation import Spec
from jobs_service.layer.record import Record
from jobs_service.layer.transaction import JobTransaction
from jobs_service.layer.unit_of_work import UnitOfWork
from tests.simulation.mutants.mutant import Defect, Mutant, changed, together

# The queue


def a_job_due_later_gives_way_to_any_that_is_ready() -> Defect:
    """With `due_by`, ready jobs come before scheduled ones whatever their priorities."""
    return changed(
        candidates.candidates,
        ("sorted(ranked + own + later, key", "ranked + sorted(own + later, key"),
    )


def of_jobs_due_later_the_earliest_is_taken() -> Defect:
    """With `due_by`, scheduled jobs are taken in the order of their times, not of their priorities."""
    return changed(
        candidates._scheduled_by,
        ("heapq.nsmallest(wanted, first + ranked, key=itemgetter(0))", "(first + ranked)[:wanted]"),
    )


def max_priority_leaves_scheduled_jobs_of_its_own_out() -> Defect:
    """With `due_by`, scheduled jobs of exactly the greatest priority are not taken."""
    return changed(candidates._scheduled_by, ("priority <= terms.max_priority", "priority < terms.max_priority"))


def max_priority_does_not_hold_for_jobs_of_this_transaction() -> Defect:
    """An accept takes a job that its own transaction has made pending whatever its priority."""
    return changed(
        candidates._pending_here,
        ("            or (terms.max_priority is not None and record.priority > terms.max_priority)\n", ""),
    )


def jobs_due_later_are_read_by_snapshot() -> Defect:
    """With `due_by` and exact order, a better job that is scheduled meanwhile is no conflict."""
    return changed(candidates._scheduled_by, ("unit.transaction if terms.spread == 1 else unit", "unit"))


def due_at_that_very_time_is_not_counted() -> Defect:
    """A count of what is due by a time leaves out what is due exactly then."""
    return changed(queue_counts.count, ("pack_seconds(due_by) + AFTER", "pack_seconds(due_by)"))


def the_last_job_of_a_page_is_counted_twice() -> Defect:
    """A count goes on with the key that the page before has ended with."""
    return changed(queue_counts.count, ('keys.ready if after is None else after + b"\\x00"', "after or keys.ready"))


def ready_jobs_are_counted_whatever_is_scheduled() -> Defect:
    """A count that fills its page with ready jobs leaves the scheduled ones out."""
    return changed(queue_counts.count, ("return counted, found[-1][0]", "return counted, None"))


def waiters_sleep_past_what_is_scheduled() -> Defect:
    """Who waits for jobs is told when the next one is due in milliseconds, and takes it for seconds."""
    return changed(queue.wait_for_more, ("else run_at - now", "else (run_at - now) * 1000"))


def early_jobs_hide_those_behind_them() -> Defect:
    """A look at the queue ends with a page of ready jobs that are not due, though due ones come behind it."""
    return changed(
        candidates._ready_in_store,
        ("if len(found) < limit or len(places) >= wanted or", "if len(due) < limit or len(places) >= wanted or"),
    )


def who_collides_goes_on_in_the_same_place() -> Defect:
    """The spread over a queue does not grow with collisions."""
    return changed(Spreading.learn, ("doublings + collisions", "doublings"))


# Creators


def a_unique_job_that_waits_is_changed() -> Defect:
    """Who enqueues a unique job that is pending already gives that one its own priority and time."""
    return changed(
        creation.enqueue, ("if record.state is JobState.FINISHED:", "if record.state is not JobState.RUNNING:")
    )


def enqueue_overwrites_a_timeout() -> Defect:
    """A timeout that somebody sets while the first job of a type is enqueued is overwritten without a conflict."""
    return changed(creation._make_type, ("    unit.transaction.add_read_conflict_key(keys.timeout)\n", ""))


def a_removed_type_is_made_again() -> Defect:
    """Nobody remembers that a type was removed: the next enqueue makes it anew."""
    return changed(activity.clear_type_timeout, ("declared_settings.note_removal(unit, keys)", "pass"))


def a_resubmitted_job_has_its_attempts_behind_it() -> Defect:
    """A finished job that is resubmitted goes on counting attempts where it has ended."""
    return changed(creation._resubmit, ("moved.run_data = run_data.started_anew(record.run_data, unit.now)", "pass"))


def a_second_resubmit_forgets_the_first() -> Defect:
    """Of two resubmits of a running job, what the first has said and the second left open is forgotten."""
    return changed(
        Spec.next_of, ("record.next or (record.priority, record.run_at)", "(record.priority, record.run_at)")
    )


def limits_of_a_unique_job_that_runs_again_are_forgotten() -> Defect:
    """A finished unique job that is enqueued again keeps the limits of its first time."""
    return changed(creation._resubmit, ("if limits is not None or wholly:", "if False:"))


def delays_of_days_are_cut() -> Defect:
    """Of a timedelta only the seconds within its day count."""
    return changed(durations.seconds_of, ("value.total_seconds()", "float(value.seconds)"))


def an_operators_timeout_is_overwritten() -> Defect:
    """A handler that starts sets its timeout whatever somebody has set since it declared it."""
    return changed(
        activity.declare,
        ("if seconds is None or timeout not in (None, wanted.timeout):", "if seconds != wanted.timeout:"),
    )


# Workers


def a_resubmitted_job_keeps_its_old_priority() -> Defect:
    """The run after the present one has the priority of the present one."""
    return changed(
        running_jobs.finish,
        ("unit.new_seq(), priority, run_at", "unit.new_seq(), record.priority, run_at"),
    )


def a_resubmitted_job_does_not_wait_for_its_time() -> Defect:
    """The run after the present one is ready at once, whatever time was asked for."""
    return changed(running_jobs.finish, ("unit.place_for(run_at)", "unit.place_for(None)"))


def the_row_of_crashes_goes_on_after_a_healthy_run() -> Defect:
    """How many crashes there were in a row, as the runner counts them, is not written down."""
    return changed(running_jobs.crash, (", crashes=report.crashes", ""))


def crashed_jobs_run_at_once() -> Defect:
    """The time of the next attempt is not passed on."""
    return changed(
        running_jobs.crash,
        ("record, packed, run_at, CRASHED)", "record, packed, record.run_at, CRASHED)"),
    )


def a_worker_may_ask_for_more_of_a_canceled_job() -> Defect:
    """A worker that resubmits its canceled job is not told that it was canceled."""
    return changed(running_jobs.resubmit, ("_refuse_canceled(entry, record)", "pass"))


def progress_takes_the_result_away() -> Defect:
    """What a worker says of its progress is written over the notes that are there."""
    return changed(
        running_jobs.update,
        (
            "run_data.with_part(record.run_data, PROGRESS",
            "run_data.with_part(run_data.started_anew(b'', unit.now), PROGRESS",
        ),
    )


def the_worker_of_a_lost_job_is_not_told() -> Defect:
    """A job that is taken from its worker does not wake those who watch the type's canceled jobs."""
    return changed(running_jobs.lose, ("    unit.take_away(entry.keys)\n", ""))


def canceled_jobs_are_kept_for_ever() -> Defect:
    """A canceled job is given no time at which it expires."""
    return changed(running_jobs._end, ("if keep is not None:", "if keep is not None and not record.cancel:"))


def a_full_history_takes_the_result_with_it() -> Defect:
    """When the oldest event of a history gives way, result, error and progress behind it do as well."""
    return changed(
        run_data.with_event,
        ("rest = rest[:end] + rest[size:]", "rest = rest[:end]"),
        ("    event = _event(", "        bits &= ~_ALL_PARTS\n    event = _event("),
    )


def a_history_keeps_one_event_too_many() -> Defect:
    """A history is cut when it is longer than wanted, not when it would become so."""
    return changed(run_data.with_event, ("if count >= most:", "if count > most:"))


def no_room_is_kept_for_priorities() -> Defect:
    """What a record may take until its job has ended is counted without its priorities."""
    return changed(
        Record._beside_run_data,
        ("len(self.priority) if self.next is None else max(len(self.priority), len(self.next[0]))", "0"),
    )


# Types that sleep, and changes


def who_finds_a_type_awake_does_not_rely_on_it() -> Defect:
    """A type that is taken for idle while a job is scheduled for it is no conflict."""
    return changed(
        awake_types.wake,
        ("transaction.add_read_conflict_key(keys.awake)", "pass"),
    )


def a_sleeping_type_sleeps_on() -> Defect:
    """A type that sleeps until later is not woken by a job that is due before."""
    return changed(awake_types.wake, ("unpack_seconds(until) <= at", "unpack_seconds(until) >= at"))


def types_with_jobs_that_expire_fall_asleep_for_good() -> Defect:
    """Only scheduled jobs count for when an idle type must be woken, not those that expire."""
    return changed(awake_types._next_time, ("(keys.scheduled, keys.expiring)", "(keys.scheduled,)"))


def a_type_sleeps_without_an_alarm() -> Defect:
    """A type that falls asleep is noted with its time, but nobody finds it by that."""
    return changed(awake_types.settle, ('        transaction.set(_alarm(keyspace, keys, packed), b"")\n', ""))


def the_latest_of_several_jobs_says_when_their_type_wakes() -> Defect:
    """Of several jobs that one transaction schedules, the last one says from when on their type is watched over."""
    return changed(UnitOfWork._watch_over_from, ("min(time, self._watched", "max(time, self._watched"))


def a_follower_far_behind_does_not_notice() -> Defect:
    """Who has missed rows of changes that were removed goes on as if there had been none."""
    return changed(changes.since, (" or (removed is not None and removed + _LAST_ORDER > position.changed)", ""))


def a_full_page_of_changes_is_the_last() -> Defect:
    """A follower that finds as many rows as it reads at once skips those behind them."""
    return changed(changes.since, ("if len(rows) == limit else end", "if len(rows) > limit else end"))


def ids_with_zero_bytes_are_taken_apart() -> Defect:
    """A row of changes is split at every zero byte, also those within an id."""
    return changed(changes._ids, ('        if value[end : end + 1] == b"\\xff":\n            continue\n', ""))


def whether_a_type_is_followed_is_read_by_snapshot() -> Defect:
    """Who changes a job while somebody begins to follow its type notes nothing, and is no conflict."""
    return together(
        changed(
            UnitOfWork._read_one,
            (
                "raw, followed = await self.transaction.get_many((data_key, keys.followed))",
                "raw = await self.transaction.get(data_key)\n"
                "                followed = await self.transaction.snapshot.get(keys.followed)",
            ),
        ),
        changed(
            UnitOfWork.prefetch,
            (
                "raws = await self.transaction.get_many([*missing, *(keys.followed for keys in types)])",
                "raws = await self.transaction.get_many([*missing])\n"
                "                raws += await self.transaction.snapshot.get_many([keys.followed for keys in types])",
            ),
        ),
    )


# Units of work, and what one sees


def a_removed_job_stays_in_the_queue() -> Defect:
    """The index entry of a job that is removed is left behind."""
    return changed(UnitOfWork.remove, ("clear_index(self.transaction, entry, entry.record)", "pass"))


def what_is_undone_is_not_in_the_queue_any_more() -> Defect:
    """A job that is as before, because several were to be changed and one was refused, has lost its index entry."""
    return changed(UnitOfWork._restore, ("write_index(self.transaction, entry, record)", "pass"))


def the_first_job_of_a_page_is_the_last_one_before() -> Defect:
    """A page of a list begins with the job that the page before has ended with."""
    return changed(listing.list_page, ('after + b"\\x00"', "after"))


def rows_between_two_chunks_are_read_twice() -> Defect:
    """What is read chunk by chunk has the last row of each chunk twice."""
    return changed(listing.read_rows, ('page[-1][0] + b"\\x00"', "page[-1][0]"))


def a_list_of_a_transaction_has_its_jobs_twice() -> Defect:
    """A job that the transaction has changed is listed as it is stored as well."""
    return changed(JobTransaction._list, ("if key not in changed and (", "if ("))


def a_list_of_a_transaction_ignores_the_state_of_its_own_jobs() -> Defect:
    """A list by state has all jobs that the transaction has changed, whatever their state."""
    return changed(
        JobTransaction._list,
        ("_listed(changed[key], state)", "_listed(changed[key], None)"),
    )


def a_transactions_accept_does_not_pass_due_by_on() -> Defect:
    """`tx.accept(due_by=...)` takes what is due now."""
    return changed(JobTransaction.accept, ("due_by=due_by, spread", "due_by=None, spread"))


def a_transactions_count_has_its_own_jobs_of_any_time() -> Defect:
    """`tx.pending_count(due_by=...)` counts all jobs that the transaction has made pending."""
    return changed(
        JobTransaction.pending_count,
        ("            and (seconds is None or entry.record.run_at is None or entry.record.run_at <= seconds)\n", ""),
    )


def a_transactions_removal_is_never_forced() -> Defect:
    """`tx.remove(force=True)` cancels a running job."""
    return changed(JobTransaction.remove, ("check_force(force)", "False"))


def a_transactions_finish_forgets_the_outcome() -> Defect:
    """`tx.finish(outcome=...)` ends every job with success."""
    return changed(
        JobTransaction.finish,
        ("Ending(data, outcome, result, error)", "Ending(data, Outcome.SUCCEEDED, result, error)"),
    )


def active_jobs_of_a_transaction_come_first() -> Defect:
    """`tx.active_ids` has the jobs that the transaction itself has renewed before those silent for longer."""
    return changed(
        JobTransaction.active_ids,
        (
            "[id for _, id in found] + [id for _, id in sorted(own)]",
            "[id for _, id in sorted(own)] + [id for _, id in found]",
        ),
    )


# Records that cannot be read


def an_unreadable_job_is_taken_out_and_forgotten() -> Defect:
    """Who takes the entry of an unreadable job out of the queue does not note that it was set aside."""
    return changed(strays.take_out, ("unit.set_aside(keys, packed_id, index_key)", "pass"))


def what_can_be_read_again_is_not_put_back() -> Defect:
    """A job that was set aside and can be read again is noted no more, but gets no index entry."""
    return changed(strays.put_back, ("write_index(unit.transaction, entry, entry.record)", "pass"))


def an_unreadable_job_cannot_be_removed_by_force() -> Defect:
    """Removing a job by force fails when its record cannot be read."""
    return changed(creation.remove, ("        if not force:\n            raise\n", "        raise\n"))


ALL = tuple(
    map(
        Mutant,
        (
            a_job_due_later_gives_way_to_any_that_is_ready,
            of_jobs_due_later_the_earliest_is_taken,
            max_priority_leaves_scheduled_jobs_of_its_own_out,
            max_priority_does_not_hold_for_jobs_of_this_transaction,
            jobs_due_later_are_read_by_snapshot,
            due_at_that_very_time_is_not_counted,
            the_last_job_of_a_page_is_counted_twice,
            ready_jobs_are_counted_whatever_is_scheduled,
            waiters_sleep_past_what_is_scheduled,
            early_jobs_hide_those_behind_them,
            who_collides_goes_on_in_the_same_place,
            a_unique_job_that_waits_is_changed,
            enqueue_overwrites_a_timeout,
            a_removed_type_is_made_again,
            a_resubmitted_job_has_its_attempts_behind_it,
            a_second_resubmit_forgets_the_first,
            limits_of_a_unique_job_that_runs_again_are_forgotten,
            delays_of_days_are_cut,
            an_operators_timeout_is_overwritten,
            a_resubmitted_job_keeps_its_old_priority,
            a_resubmitted_job_does_not_wait_for_its_time,
            the_row_of_crashes_goes_on_after_a_healthy_run,
            crashed_jobs_run_at_once,
            a_worker_may_ask_for_more_of_a_canceled_job,
            progress_takes_the_result_away,
            the_worker_of_a_lost_job_is_not_told,
            canceled_jobs_are_kept_for_ever,
            a_full_history_takes_the_result_with_it,
            a_history_keeps_one_event_too_many,
            no_room_is_kept_for_priorities,
            who_finds_a_type_awake_does_not_rely_on_it,
            a_sleeping_type_sleeps_on,
            types_with_jobs_that_expire_fall_asleep_for_good,
            a_type_sleeps_without_an_alarm,
            the_latest_of_several_jobs_says_when_their_type_wakes,
            a_follower_far_behind_does_not_notice,
            a_full_page_of_changes_is_the_last,
            ids_with_zero_bytes_are_taken_apart,
            whether_a_type_is_followed_is_read_by_snapshot,
            a_removed_job_stays_in_the_queue,
            what_is_undone_is_not_in_the_queue_any_more,
            the_first_job_of_a_page_is_the_last_one_before,
            rows_between_two_chunks_are_read_twice,
            a_list_of_a_transaction_has_its_jobs_twice,
            a_list_of_a_transaction_ignores_the_state_of_its_own_jobs,
            a_transactions_accept_does_not_pass_due_by_on,
            a_transactions_count_has_its_own_jobs_of_any_time,
            a_transactions_removal_is_never_forced,
            a_transactions_finish_forgets_the_outcome,
            active_jobs_of_a_transaction_come_first,
            an_unreadable_job_is_taken_out_and_forgotten,
            what_can_be_read_again_is_not_put_back,
            an_unreadable_job_cannot_be_removed_by_force,
        ),
    )
)
