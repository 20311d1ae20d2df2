"""Slips in the actors, the service and the runner, made without a look at the checks or other slips."""

from __future__ import annotations

from jobs_service import uncancelable
from jobs_service.actors.notifier import Notifier
from jobs_service.actors.process_row import ProcessRowWriter
from jobs_service.actors.subscriptions import Hub, Mailbox
from jobs_service.actors.type_server import TypeServer
from jobs_service.runner import exception_groups, retry_policy, schedule
from jobs_service.runner.active_runs import ActiveRuns
from jobs_service.runner.blocking import BlockingJob
from jobs_service.runner.execution import Execution
from jobs_service.runner.job_worker import JobWorker
from jobs_service.runner.run_endings import RunEndings
from jobs_service.runner.worker_pool import WorkerPool
from jobs_service.service import count_operations
from jobs_service.service.creator_operations import CreatorOperations
from jobs_service.service.lifecycle import Lifecycle
from jobs_service.service.presence import Presence
from jobs_service.service.running_job_calls import RunningJobCalls
from jobs_service.service.transactions import Transactions
from tests.simulation.mutants.mutant import Defect, Mutant, changed

# Actors


def a_job_that_has_ended_is_told_of_again() -> Defect:
    """Of several subscribed jobs, one that has ended and runs again gives events after its last one, and ends all."""
    return changed(
        Notifier._report,
        ("                if target.ended:\n                    self._hub.discard(target)\n", ""),
    )


def who_unsubscribes_has_new_subscriptions_of_the_type_forgotten() -> Defect:
    """In a type that is followed, who subscribes as somebody else's subscription ends is not told the present state."""
    return changed(
        Hub.discard,
        (
            "            self._fresh.pop(target.keys, None)",
            "        self._fresh.pop(target.keys, None)",
        ),
    )


def a_job_that_is_again_as_it_was_breaks_its_subscription() -> Defect:
    """A slow subscriber gets a KeyError if the job has changed and is again as the subscriber knows it, as when it was
    taken and released.
    """
    return changed(Mailbox.put, ("            self._order.remove(target)\n", ""))


def notifiers_outlive_their_type_server() -> Defect:
    """If the type server crashes while somebody subscribes, it cannot be started again, and the service fails."""
    return changed(TypeServer.init, ("        await self._notifier_supervisor.stop_all()\n", ""))


def what_changes_while_the_process_row_is_written_is_not_told() -> Defect:
    """A process that is asked to be quiet as it writes its row is shown as before until its next heartbeat."""
    return changed(
        ProcessRowWriter.run,
        (
            "            written = self._time()\n",
            "            while await self.receive(0) is not None:\n"
            '                """What was to be written is written."""\n'
            "            written = self._time()\n",
        ),
    )


def events_have_no_progress() -> Defect:
    """Subscribers hear that something is new when a handler tells how far it has come, but not how far."""
    return changed(
        Notifier._report_to, ("                run_data.progress_of(record.run_data),\n", "                None,\n")
    )


# The service


def who_is_canceled_while_leaving_goes_on() -> Defect:
    """The cancellation of a task that is just leaving the service is lost: the task goes on behind its `async with`."""
    return changed(
        uncancelable.through_cancellation,
        ("raise canceled from None if task.cancelled() else task.exception()", "pass"),
    )


def who_gives_no_time_to_stop_removes_nothing() -> Defect:
    """`stop_and_remove(timeout=0)` neither removes a waiting job nor cancels one that runs."""
    return changed(CreatorOperations.stop_and_remove, ("max(seconds, _MOMENT)", "seconds"))


def a_transaction_that_fails_locks_its_caller_out() -> Defect:
    """On the memory store, a task whose transaction function has raised an error can never use the service again."""
    return changed(
        Transactions.transact,
        (
            "                return await run\n"
            "            finally:\n"
            "                accepted[:] = tx._end()\n"
            "                self._access.inside.discard(here)\n",
            "                result = await run\n"
            "                self._access.inside.discard(here)\n"
            "                return result\n"
            "            finally:\n"
            "                accepted[:] = tx._end()\n",
        ),
    )


def a_type_without_jobs_has_no_counts() -> Defect:
    """`counts(type)` says nothing of a type that exists and has no jobs."""
    return changed(count_operations._of_type, ("timeout is not None or counts.jobs or lost", "counts.jobs or lost"))


def who_has_run_handlers_is_canceled_as_the_service_is_left() -> Defect:
    """A program whose `run` has returned, as somebody stopped the process, is canceled when it leaves the service."""
    return changed(Lifecycle.run, ("            self._running = None\n", ""))


def an_opening_that_is_canceled_is_not_undone() -> Defect:
    """Who is canceled while the service opens cannot open it again; what has been started of it goes on."""
    return changed(Lifecycle.enter, ("except BaseException:", "except Exception:"))


def a_process_that_was_quiet_is_quiet_when_it_runs_again() -> Defect:
    """Handlers that are run again in a process that was quiet as it ran them last take no jobs."""
    return changed(Presence._leave, ("self.is_quiet = self._is_stopping = False", "self._is_stopping = False"))


def a_job_that_a_function_returns_to_finish_with_is_a_result() -> Defect:
    """`finish_with` fails where its function returns what an operation on another job has returned."""
    return changed(
        RunningJobCalls._finish_with, ("result=UNSET if isinstance(result, Job) else result", "result=result")
    )


# The runner


def a_handler_that_is_leaving_is_interrupted_once_more() -> Defect:
    """A handler that was asked to give up its slot is canceled again in its clean-up when its job is canceled then."""
    return changed(ActiveRuns.stop_run, ("        if first:\n", "        if first or why in _LOST_TO_OTHERS:\n"))


def a_result_that_is_too_large_holds_up_the_end_of_the_runner() -> Defect:
    """A runner that had a result which the store did not take waits for its whole grace at its end, for nothing."""
    return changed(RunEndings._not_written, ("self._queue(run, failure)", "self.write(run, failure)"))


def a_plain_function_that_goes_on_to_its_end_is_run_again() -> Defect:
    """A plain function that has seen that the process stops, and returns its result in time, has its job given back."""
    return changed(
        Execution._in_thread,
        ("if result is None and (blocking.has_heeded", "if (blocking.has_heeded"),
    )


def who_asks_to_be_tried_again_at_once_is_put_off() -> Defect:
    """A handler that raises `Retry(after=0)` is tried again after its backoff."""
    return changed(
        retry_policy.decide,
        ("(after := wait_of(error)) is not None", "(after := wait_of(error))"),
    )


def a_tick_that_was_skipped_keeps_all_others_from_coming() -> Defect:
    """A handler with `missed="skip"` is never run again after a tick that nobody was there for."""
    return changed(schedule.due_ticks, ("now - newest > PUNCTUAL", "now - first > PUNCTUAL"))


def a_plain_function_of_a_canceled_job_is_not_told() -> Defect:
    """A plain function whose job was removed or lost never sees `stopping`, and computes on."""
    return changed(BlockingJob.stop, ("        self._announced.set()\n", ""))


def what_a_group_in_a_group_says_is_not_heard() -> Defect:
    """A Discard or Snooze from a task group within another one counts as an error: the job is tried again."""
    return changed(exception_groups.decisive, ("[*leaves(error)]", "[*error.exceptions]"))


def who_is_leaving_is_one_too_many_once_more() -> Defect:
    """While handlers beyond a reduced number of slots are leaving, any change of options stops as many others."""
    return changed(
        WorkerPool._stop_excess,
        ("-self._active_runs.free - self._active_runs.leaving", "-self._active_runs.free"),
    )


def a_run_beyond_its_time_limit_is_the_last_one() -> Defect:
    """A job whose run took longer than its time limit has failed for good, whatever attempts are left."""
    return changed(
        Execution.end_of_stopped, ("self._failed(job, TimeoutError(", "self._failed_for_good(job, TimeoutError(")
    )


def who_gives_up_waiting_for_an_end_is_taken_for_late() -> Defect:
    """A handler that waits for its `job.finish()` for a short time only, and goes on, is canceled when it is stored."""
    return changed(JobWorker._ended_by, ("CommitUnknown, asyncio.CancelledError)", "CommitUnknown)"))


ALL = tuple(
    map(
        Mutant,
        (
            a_job_that_has_ended_is_told_of_again,
            who_unsubscribes_has_new_subscriptions_of_the_type_forgotten,
            a_job_that_is_again_as_it_was_breaks_its_subscription,
            notifiers_outlive_their_type_server,
            what_changes_while_the_process_row_is_written_is_not_told,
            events_have_no_progress,
            who_is_canceled_while_leaving_goes_on,
            who_gives_no_time_to_stop_removes_nothing,
            a_transaction_that_fails_locks_its_caller_out,
            a_type_without_jobs_has_no_counts,
            who_has_run_handlers_is_canceled_as_the_service_is_left,
            an_opening_that_is_canceled_is_not_undone,
            a_process_that_was_quiet_is_quiet_when_it_runs_again,
            a_job_that_a_function_returns_to_finish_with_is_a_result,
            a_handler_that_is_leaving_is_interrupted_once_more,
            a_result_that_is_too_large_holds_up_the_end_of_the_runner,
            a_plain_function_that_goes_on_to_its_end_is_run_again,
            who_asks_to_be_tried_again_at_once_is_put_off,
            a_tick_that_was_skipped_keeps_all_others_from_coming,
            a_plain_function_of_a_canceled_job_is_not_told,
            what_a_group_in_a_group_says_is_not_heard,
            who_is_leaving_is_one_too_many_once_more,
            a_run_beyond_its_time_limit_is_the_last_one,
            who_gives_up_waiting_for_an_end_is_taken_for_late,
        ),
    )
)
"""Every slip here."""
