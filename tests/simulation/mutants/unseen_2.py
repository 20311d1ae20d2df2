"""Slips in the actors, the service and the runner, made without a look at the checks or other slips."""

from __future__ import annotations

from jobs_service.service.watcher_operations import WatcherOperations

from jobs_service.actors.activity_monitor import ActivityMonitor
from jobs_service.actors.notifier import Notifier
from jobs_service.actors.process_row import ProcessRowWriter
from jobs_service.actors.subscriptions import Subscription
from jobs_service.actors.type_monitor import TypeMonitor
from jobs_service.layer import activity, inspection
from jobs_service.layer.transaction import JobTransaction
from jobs_service.runner.active_runs import ActiveRuns
from jobs_service.runner.execution import Execution
from jobs_service.runner.job_worker import JobWorker
from jobs_service.runner.run_endings import RunEndings
from jobs_service.runner.schedule import Cron
from jobs_service.runner.slot_sharing import SlotSharing
from jobs_service.runner.worker_pool import WorkerPool
from jobs_service.service.acceptor import Acceptor
from jobs_service.service.handler_runs import HandlerRuns
from jobs_service.service.local_access import LocalAccess
from jobs_service.service.presence import Presence
from jobs_service.service.transactions import Transactions
from tests.simulation.mutants.mutant import Defect, Mutant, changed

# The actors


def jobs_that_were_to_be_looked_at_as_a_timeout_changed_never_are() -> Defect:
    """Silent jobs that are left alone, since the timeout has changed, count as looked at: they stay locked."""
    return changed(
        ActivityMonitor._re_enqueue,
        (
            "            self._lost = None\n            return\n",
            "            self._lost, self._clean = None, until\n            return\n",
        ),
    )


def last_records_are_removed_however_young() -> Defect:
    """They go up to the newest stamp, not that of a minute ago: a slow follower hears that a job was removed."""
    return changed(
        ActivityMonitor._drop_unread, ("self._told = before.stamp, keys.last", "self._told = now.stamp, keys.last")
    )


def expired_jobs_go_one_batch_per_period() -> Defect:
    """After a batch of expired jobs the monitor waits for a period: where more expire, the store grows for ever."""
    return changed(
        ActivityMonitor._remove_expired,
        (
            "            self._expiry_at = self._time()\n",
            "            self._expiry_at = self._expired_at + self._context.settings.expiry_check_period\n",
        ),
    )


def a_type_without_monitor_is_sampled_on() -> Defect:
    """A monitor that ends stays with the sampler, which reads the stamp of its type for ever."""
    return changed(ActivityMonitor.terminate, ("        self._sampler.remove(self._sampled)\n", ""))


def changes_are_followed_from_behind_the_read_of_all() -> Defect:
    """Where changes are followed from is read after the jobs: what changes in between is told to no subscriber."""
    return changed(
        Notifier._report_all,
        (
            "        self._position = position\n",
            "        self._position = await self._context.retried(\n"
            "            lambda: self._context.read(lambda transaction: changes.begin(transaction, self._keys))\n"
            "        )\n",
        ),
    )


def a_subscription_to_a_damaged_job_fails_again_and_again() -> Defect:
    """The target of an unreadable job stays in the hub, and fails once more with each change of its type."""
    return changed(
        Notifier._report,
        (
            "                    target.fail(error.of(target.keys.type, target.id))\n",
            "                    target.fail(error.of(target.keys.type, target.id))\n                    continue\n",
        ),
    )


def who_takes_from_a_subscription_that_is_closed_waits_for_ever() -> Defect:
    """A subscription that is closed, as by leaving its block, does not end for the tasks that iterate over it."""
    return changed(Subscription.close, ("        self._mailbox.close()\n", ""))


def a_heartbeat_that_waits_for_the_store_is_dated_at_its_beginning() -> Defect:
    """The row of a process is made before the attempts to write it: after an outage the process seems silent."""
    return changed(
        ProcessRowWriter._write,
        (
            "        def written() -> Awaitable[None]:\n"
            "            row = self._row()  # here, not in the transaction, which runs on another thread\n",
            "        row = self._row()  # here, not in the transaction, which runs on another thread\n\n"
            "        def written() -> Awaitable[None]:\n",
        ),
    )


def the_watch_of_a_notifier_outlives_it() -> Defect:
    """A notifier that is stopped leaves its watch on the type's activity in the store."""
    return changed(
        TypeMonitor.run,
        ("            finally:\n                watch.cancel()\n", "            finally:\n                del watch\n"),
    )


# The service


def an_end_that_was_rolled_back_counts_as_begun() -> Defect:
    """A handler whose transaction has ended its job, and failed, goes on when another worker takes the job."""
    return changed(
        Transactions.transact,
        ("        except Exception:\n            forget_ends()\n", "        except Exception:\n"),
    )


def workers_who_want_other_jobs_stand_in_one_line() -> Defect:
    """Those who wait with and without a greatest priority watch for each other, and are not woken for their jobs."""
    return changed(Acceptor.accept, ("self._waiting.get((keys, terms), attempt)", "self._waiting.get(keys, attempt)"))


def who_does_not_wait_gets_nothing_while_others_jobs_come_due() -> Defect:
    """An accept with timeout 0 gives up once the jobs that it made ready are not for it, whatever is behind them."""
    return changed(Acceptor.accept, ("if attempts == _MOST_ATTEMPTS:", "if attempts:"))


def jobs_of_a_paused_type_make_continuous_ones_give_way() -> Defect:
    """Jobs that nobody may accept count as due: continuous jobs of a paused type are stopped for them."""
    return changed(
        Acceptor.count_due,
        ("            if await activity.is_paused(transaction, keys):\n                return 0\n", ""),
    )


def a_job_is_ready_since_it_was_added() -> Defect:
    """`queue_state` names for a scheduled job that has come due the time at which it was added."""
    return changed(inspection._pending_since, ("return max(", "return min("))


def a_process_that_runs_handlers_again_cannot_be_stopped() -> Defect:
    """After `stop_process` a program that calls `run` once more is shown as stopping, and does not stop."""
    return changed(Presence._leave, ("self.is_quiet = self._is_stopping = False", "self.is_quiet = False"))


def a_count_in_a_transaction_is_no_conflict() -> Defect:
    """A transaction that counts pending jobs commits although others have added or taken some meanwhile."""
    return changed(
        JobTransaction.pending_count,
        ("queue_counts.count(self._unit.transaction, keys", "queue_counts.count(self._unit.transaction.snapshot, keys"),
    )


def removing_a_type_that_never_was_forbids_to_make_it() -> Defect:
    """After `clear_type_timeout` of a type that does not exist, `enqueue` does not make it."""
    return changed(
        activity.clear_type_timeout,
        (
            "    if await unit.transaction.get(keys.timeout) is not None:\n"
            "        declared_settings.note_removal(unit, keys)\n",
            "    declared_settings.note_removal(unit, keys)\n",
        ),
    )


def a_job_that_is_named_twice_is_told_of_twice() -> Defect:
    """A subscription to the same job, named twice, has each of its events twice."""
    return changed(
        WatcherOperations.subscribe_many,
        ("wanted: dict[tuple[TypeKeys, JobId], None] = {}", "wanted: list[tuple[TypeKeys, JobId]] = []"),
        ("wanted[keys, checked] = None", "wanted.append((keys, checked))"),
    )


def handlers_that_were_canceled_count_as_running() -> Defect:
    """After a `run` that was canceled the service refuses another one: its handlers run already."""
    return changed(
        HandlerRuns.run,
        (
            "        finally:\n            self._registry.runner = None\n",
            "        except JobsError:\n            self._registry.runner = None\n            raise\n"
            "        else:\n            self._registry.runner = None\n",
        ),
    )


# The runner and schedules


def who_snoozes_after_the_time_limit_is_not_late() -> Defect:
    """A handler that answers its cancellation for overtime with Snooze runs again, for ever, and never fails."""
    return changed(
        Execution._raised,
        ("if isinstance(error, Snooze) and why is not StopReason.OVERTIME:", "if isinstance(error, Snooze):"),
    )


def a_conflict_about_another_job_ends_this_one() -> Defect:
    """A handler that raises WorkerConflict for another job than its own leaves its own without an end: it is lost."""
    return changed(Execution._raised, (" and _is_about(each, job)", ""))


def a_run_whose_end_comes_too_late_is_never_settled() -> Defect:
    """A run that another worker has taken over meanwhile stays known: it is renewed, and waited for at the end."""
    return changed(
        RunEndings._not_written,
        (
            "            self._log_ended_otherwise(run, end)\n            self._settle(run)\n",
            "            self._log_ended_otherwise(run, end)\n",
        ),
    )


def those_who_leave_their_slots_make_no_room() -> Defect:
    """While a continuous job takes its grace, further ones are stopped for the same jobs that wait."""
    return changed(WorkerPool.reschedule, ("due[priority]) - leaving and", "due[priority]) and"))


def who_gives_way_is_next_in_line() -> Defect:
    """A handler that has given way under `max_jobs` keeps its place in line, and may take the slot again."""
    return changed(SlotSharing._share, ("            self._slot_limit.put_last(runs)\n", ""))


def ticks_of_every_hour_skip_the_repeated_one() -> Defect:
    """When clocks are set back, a cron expression for every hour does not tick for an hour."""
    return changed(Cron._first_wall, ("change if self._every_hour else change - 1", "change - 1"))


def a_job_that_ends_before_it_is_watched_holds_ticks_up() -> Defect:
    """A ticker waits for the end of a job that has ended just before its watch was made, for half a minute."""
    return changed(LocalAccess.watch_tick, (" or (key != paused and _is_over(raw))", ""))


def the_runner_does_not_hear_of_a_job_that_was_updated() -> Defect:
    """What a handler does with the job that `update` returns passes the runner by: it is canceled after `finish`."""
    return changed(JobWorker._changed, ("return self.take(job)", "return job"))


def who_waits_for_an_end_is_taken_for_one_who_has_lost_the_job() -> Defect:
    """A heartbeat that comes between a handler's `finish` and its answer cancels the handler."""
    return changed(
        ActiveRuns.heed,
        (
            "            if holding is LockStatus.TAKEN and run.end_awaited:\n"
            "                continue  # by the handler itself, or by another worker: the answer tells the handler, "
            "or the next look\n",
            "",
        ),
    )


ALL = tuple(
    map(
        Mutant,
        (
            jobs_that_were_to_be_looked_at_as_a_timeout_changed_never_are,
            last_records_are_removed_however_young,
            expired_jobs_go_one_batch_per_period,
            a_type_without_monitor_is_sampled_on,
            changes_are_followed_from_behind_the_read_of_all,
            a_subscription_to_a_damaged_job_fails_again_and_again,
            who_takes_from_a_subscription_that_is_closed_waits_for_ever,
            a_heartbeat_that_waits_for_the_store_is_dated_at_its_beginning,
            the_watch_of_a_notifier_outlives_it,
            an_end_that_was_rolled_back_counts_as_begun,
            workers_who_want_other_jobs_stand_in_one_line,
            who_does_not_wait_gets_nothing_while_others_jobs_come_due,
            jobs_of_a_paused_type_make_continuous_ones_give_way,
            a_job_is_ready_since_it_was_added,
            a_process_that_runs_handlers_again_cannot_be_stopped,
            a_count_in_a_transaction_is_no_conflict,
            removing_a_type_that_never_was_forbids_to_make_it,
            a_job_that_is_named_twice_is_told_of_twice,
            handlers_that_were_canceled_count_as_running,
            who_snoozes_after_the_time_limit_is_not_late,
            a_conflict_about_another_job_ends_this_one,
            a_run_whose_end_comes_too_late_is_never_settled,
            those_who_leave_their_slots_make_no_room,
            who_gives_way_is_next_in_line,
            ticks_of_every_hour_skip_the_repeated_one,
            a_job_that_ends_before_it_is_watched_holds_ticks_up,
            the_runner_does_not_hear_of_a_job_that_was_updated,
            who_waits_for_an_end_is_taken_for_one_who_has_lost_the_job,
        ),
    )
)
"""Every slip here."""
