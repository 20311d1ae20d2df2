"""Slips in the service, in blocks of the application's own transactions and in copying, made without a look at what
the simulation checks."""

from __future__ import annotations

from jobs_service.service.bulk import BulkCreation

from jobs_service.copying import source, target
from jobs_service.copying.copy import _Copy
from jobs_service.copying.rows import Stream
from jobs_service.layer import running_jobs
from jobs_service.service import JobsService
from jobs_service.service.handler_registry import HandlerRegistry
from jobs_service.service.handler_runs import HandlerRuns
from jobs_service.service.lifecycle import Lifecycle
from jobs_service.service.running_job_calls import RunningJobCalls
from jobs_service.service.sync_transaction import Blocks, WithinTransaction
from jobs_service.service.transactions import Transactions
from jobs_service.service.waiting_workers import WaitingWorkers
from jobs_service.store.held_writes import HeldBack, _Reads
from tests.simulation.mutants.mutant import Defect, Mutant, changed

# What is asked of the service


def waiting_for_a_finished_jobs_change_fails() -> Defect:
    """Who waits for the next change of a job that has finished is told that it has ended without one."""
    return changed(JobsService.wait, ("(event is not None or now.state in FINAL)", "event is not None"))


def stop_and_remove_tries_once_more_only() -> Defect:
    """A canceled job that runs again before it is removed is left to run."""
    return changed(JobsService.stop_and_remove, ("while removal is", "if removal is"))


def the_watch_on_a_running_job_is_made_too_late() -> Defect:
    """Who waits until a job does not run any more looks first and watches in another transaction."""
    return changed(
        JobsService._not_running,
        (
            "            running, watch = await self._context.retried(reading, type=type, id=id)\n",
            "            running, watch = await self._context.retried(reading, type=type, id=id)\n"
            "            watch.cancel()\n"
            "            _, watch = await self._context.retried(reading, type=type, id=id)\n",
        ),
    )


def pending_count_goes_over_its_limit() -> Defect:
    """A count that was to stop at a limit returns what its last page had."""
    return changed(JobsService.pending_count, (" if most is None else min(counted, most)\n", "\n"))


def a_page_without_jobs_of_the_state_ends_the_list() -> Defect:
    """A list by state ends with the first page that has no job in it."""
    return changed(
        JobsService.list,
        (
            "            if after is None:\n",
            "            if after is None or not any(wanted in (None, job.state) for _, job in page):\n",
        ),
    )


def a_list_by_state_forgets_the_type() -> Defect:
    """A list by state has the jobs of all types."""
    return changed(JobsService.list, ("None if type is None else", "None if type is None or state is not None else"))


def the_first_job_of_each_further_batch_is_lost() -> Defect:
    """Of many jobs that are added, those are forgotten that begin another transaction."""
    return changed(
        BulkCreation._batches,
        (
            "                batch, size = _Batch(), 0\n",
            "                batch, size = _Batch(), 0\n                continue\n",
        ),
    )


def a_workers_resubmit_forgets_when() -> Defect:
    """A running job that asks for another run does not pass its time on."""
    return changed(
        RunningJobCalls._resubmit,
        ("job.id, data, priority, run_at)", "job.id, data, priority, UNSET)"),
    )


def a_workers_error_is_dropped() -> Defect:
    """What a worker says is the error of its run is not stored."""
    return changed(running_jobs.encoded_ending, ("_report(job, result, error)", "_report(job, result, None)"))


def what_finish_with_returns_is_no_result() -> Defect:
    """What the function of finish_with returns is not stored as the job's result."""
    return changed(
        RunningJobCalls._finish_with,
        ("result=UNSET if isinstance(result, Job) else result", "result=UNSET"),
    )


def a_worker_that_says_its_progress_clears_its_data() -> Defect:
    """Progress is written together with empty data."""
    return changed(RunningJobCalls._progress, ("job.lock, None, json", 'job.lock, b"", json'))


def a_removal_is_never_forced() -> Defect:
    """`remove(force=True)` is passed on as if it had been left out, unless the job does not run."""
    return changed(JobsService.remove, ("place(type, id), checked)", "place(type, id), False)"))


def accept_without_time_takes_one_job() -> Defect:
    """`accept(timeout=0)` takes fewer jobs than there are: it is content with the first that it meets."""
    return changed(
        JobsService.accept_many,
        ("terms(limit, ", "terms(1 if timeout == 0 else limit, "),
    )


# Timeouts, settings, handlers


def a_timeout_that_a_transaction_changes_is_noticed_late() -> Defect:
    """A transaction that changes a type's timeout does not have it looked at."""
    return changed(Transactions.transact, ("if changed:", "if False:"))


def what_the_settings_name_no_more_stays() -> Defect:
    """An option of a handler that the settings do not name any more is not as it was registered again."""
    return changed(HandlerRegistry.apply, ("{**before, **options}", "options"))


def configured_options_are_lost_with_the_next_settings() -> Defect:
    """What `configure` has said is undone when the settings are read again."""
    return changed(HandlerRegistry.configure, ("self._replaced.get(handler.packed, {}).pop(name, None)", "pass"))


def ticks_come_for_types_that_do_not_run_here() -> Defect:
    """A process that was asked to run some types only adds the ticks of all."""
    return changed(HandlerRuns.run, ("if each.handler in handlers]", "]"))


def running_with_a_closed_service_forgets_the_cap() -> Defect:
    """`run` that opens the service itself does not pass max_jobs on."""
    return changed(JobsService.run, ("max_jobs=max_jobs, started=started)", "started=started)"))


# Those who wait


def a_turn_that_comes_to_one_who_has_gone_is_lost() -> Defect:
    """A worker that is canceled just as its turn comes does not pass the turn on."""
    return changed(WaitingWorkers._queue, ("line.wake(1)  # canceled as its turn came", "pass"))


def a_worker_that_fails_does_not_pass_the_turn_on() -> Defect:
    """When the look of a worker that was woken fails, the next in line are not woken."""
    return changed(WaitingWorkers.get, ("if not queued:", "if queued:"))


def who_was_woken_in_vain_goes_to_the_end_of_the_line() -> Defect:
    """Workers that were woken and found nothing lose their place in line."""
    return changed(
        WaitingWorkers._queue,
        ("bisect(line.behind, number, key=itemgetter(0))", "len(line.behind)"),
    )


def leaving_does_not_end_subscriptions() -> Defect:
    """Who iterates over events when the service is left is not told."""
    return changed(Lifecycle._leave, ('        self._hub.close(ServiceClosed("the service was closed"))\n', ""))


def the_failure_of_the_service_is_not_raised() -> Defect:
    """A service that has failed is left as if it had not, when its body was canceled because of that."""
    return changed(Lifecycle.leave, (" or issubclass(kind, asyncio.CancelledError)", ""))


# The application's own transactions


def a_second_block_counts_moves_from_zero() -> Defect:
    """Jobs of two blocks on one transaction get the same places."""
    return changed(Blocks.enter, ("self._moves.get(application, 0) % _MOST_MOVES", "0"))


def a_block_that_raises_is_written() -> Defect:
    """What a block has done is handed to the transaction also when the block raises."""
    return changed(WithinTransaction.__exit__, ("if kind is None:", "if True:"))


def types_of_a_block_are_not_woken() -> Defect:
    """A type whose first job comes from a block is not watched over."""
    return changed(WithinTransaction.__exit__, ("                drive(unit.settle())\n", ""))


def a_block_that_fails_stays_open() -> Defect:
    """After a block that could not be handed over, no other one can be begun on its transaction."""
    return changed(
        WithinTransaction.__exit__,
        ("        try:\n            if kind is None:", "        if True:\n            if kind is None:"),
        ("        finally:\n            self._blocks.leave", "        if True:\n            self._blocks.leave"),
    )


def a_range_after_clears_of_a_block_is_short() -> Defect:
    """A limited read of a range comes back with fewer rows than there are when the block has cleared some."""
    return changed(_Reads.get_range, ("limit=limit and limit + len(own)", "limit=limit"))


def counters_of_a_block_are_not_bumped() -> Defect:
    """A block hands over what it sets and clears, but not what it adds."""
    return changed(HeldBack.hand_over, ("            transaction.add(key, operand)\n", "            pass\n"))


# Copying


def a_stream_ends_with_its_first_page() -> Defect:
    """Of the rows of a section only those are read that one transaction holds."""
    return changed(Stream.next, ("            if self._last:\n", "            if self._last or self._rows:\n"))


def a_page_that_was_cut_by_its_bytes_is_the_last() -> Defect:
    """Index entries whose jobs did not fit into a page are not copied."""
    return changed(source.Source.page, ("more = read < len(rows) or not last", "more = not last"))


def a_copy_that_goes_on_skips_the_beginning_of_a_phase() -> Defect:
    """A copy that was stopped begins each later phase where it had stopped in the first one."""
    return changed(_Copy._copy, ('if phase is note.phase else b""', "if note.after else b''"))


def a_copied_type_stays_paused() -> Defect:
    """A type that the copy has paused is not resumed at its end."""
    return changed(target.Target._open, ("not flags & WAS_PAUSED", "flags & WAS_PAUSED"))


def a_copy_forgets_how_long_jobs_are_kept() -> Defect:
    """The retention of a type is not copied where it has a timeout."""
    return changed(
        target.Target._open,
        ("(keys.retention, settings.retention)", "(keys.retention, None if settings.timeout else settings.retention)"),
    )


def a_copy_sets_the_clock_of_ticks_back() -> Defect:
    """Of two last ticks of a periodic type the earlier one is kept: ticks come twice."""
    return changed(target.later, (">= fdb.tuple", "<= fdb.tuple"))


def a_canceled_job_is_copied_as_a_waiting_one() -> Defect:
    """A running job that was to be removed is pending in the copy."""
    return changed(target.moved, ("if record.cancel:", "if False:"))


ALL = tuple(
    map(
        Mutant,
        (
            waiting_for_a_finished_jobs_change_fails,
            stop_and_remove_tries_once_more_only,
            the_watch_on_a_running_job_is_made_too_late,
            pending_count_goes_over_its_limit,
            a_page_without_jobs_of_the_state_ends_the_list,
            a_list_by_state_forgets_the_type,
            the_first_job_of_each_further_batch_is_lost,
            a_workers_resubmit_forgets_when,
            a_workers_error_is_dropped,
            what_finish_with_returns_is_no_result,
            a_worker_that_says_its_progress_clears_its_data,
            a_removal_is_never_forced,
            accept_without_time_takes_one_job,
            a_timeout_that_a_transaction_changes_is_noticed_late,
            what_the_settings_name_no_more_stays,
            configured_options_are_lost_with_the_next_settings,
            ticks_come_for_types_that_do_not_run_here,
            running_with_a_closed_service_forgets_the_cap,
            a_turn_that_comes_to_one_who_has_gone_is_lost,
            a_worker_that_fails_does_not_pass_the_turn_on,
            who_was_woken_in_vain_goes_to_the_end_of_the_line,
            leaving_does_not_end_subscriptions,
            the_failure_of_the_service_is_not_raised,
            a_second_block_counts_moves_from_zero,
            a_block_that_raises_is_written,
            types_of_a_block_are_not_woken,
            a_block_that_fails_stays_open,
            a_range_after_clears_of_a_block_is_short,
            counters_of_a_block_are_not_bumped,
            a_stream_ends_with_its_first_page,
            a_page_that_was_cut_by_its_bytes_is_the_last,
            a_copy_that_goes_on_skips_the_beginning_of_a_phase,
            a_copied_type_stays_paused,
            a_copy_forgets_how_long_jobs_are_kept,
            a_copy_sets_the_clock_of_ticks_back,
            a_canceled_job_is_copied_as_a_waiting_one,
        ),
    )
)
