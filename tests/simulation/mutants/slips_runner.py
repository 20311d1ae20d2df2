"""Slips in the runner, made without a look at what the simulation checks."""

from __future__ import annotations

from jobs_service.runner import execution, retry_policy, rotation, schedule, stats, ticker
from jobs_service.runner.active_runs import ActiveRuns
from jobs_service.runner.blocking import BlockingJob
from jobs_service.runner.execution import Execution
from jobs_service.runner.heartbeat import Heartbeat
from jobs_service.runner.run_endings import RunEndings
from jobs_service.runner.runner import Runner
from jobs_service.runner.slot_limit import SlotLimit
from jobs_service.runner.ticker import Ticker
from jobs_service.runner.worker_pool import WorkerPool
from tests.simulation.mutants.mutant import Defect, Mutant, changed

# Heartbeats


def one_heartbeat_per_timeout() -> Defect:
    """Hearts beat once per timeout, not three times."""
    return changed(Heartbeat.run, ("self._active_runs.timeout / BEATS", "self._active_runs.timeout"))


def a_shorter_timeout_does_not_quicken_the_heartbeat() -> Defect:
    """Hearts beat in a new rhythm only when the type's timeout has become longer."""
    return changed(
        Heartbeat._follow_timeout, ("timeout != self._active_runs.timeout", "timeout > self._active_runs.timeout")
    )


def who_was_asked_to_end_has_no_heartbeat() -> Defect:
    """The job of a handler that was asked to end is not renewed while its grace lasts."""
    return changed(Heartbeat._renew, ("if not run.written]", "if not run.written and run.stop_reason is None]"))


def heartbeats_end_before_handlers() -> Defect:
    """When the runner ends, hearts stop before the handlers have had their grace."""
    return changed(Runner._end, ("await self._drain()", "tree.cancel()\n            await self._drain()"))


# Ends


def an_end_that_meets_weather_is_given_up() -> Defect:
    """The end of a run that the store does not take at once is not written any more."""
    return changed(RunEndings._not_written, ("self._rewrite(run, end)", "self._settle(run)"))


def the_first_end_of_each_further_batch_is_lost() -> Defect:
    """Of ends that are more than one transaction holds, those are forgotten that begin a new one."""
    return changed(RunEndings._send_all, ("sent += len(part)", "sent += len(part) + 1"))


def a_run_that_a_handler_has_ended_goes_on_counting() -> Defect:
    """A job that its handler has finished itself is taken for running: the next heartbeat interrupts the handler."""
    return changed(ActiveRuns.job_ended, ("            run.written = True\n", ""))


def an_abandoned_job_is_ended_twice() -> Defect:
    """A handler that has outlasted its grace still writes an end when it returns."""
    return changed(ActiveRuns._abandon, ("run.written = run.abandoned = True", "run.abandoned = True"))


# What becomes of a run


def the_seconds_of_a_retry_are_milliseconds() -> Defect:
    """A handler that asks for a retry after some seconds is run again after as many milliseconds."""
    return changed(retry_policy.decide, ("now + after, crashes", "now + after / 1000, crashes"))


def a_snoozed_job_runs_at_once() -> Defect:
    """The seconds of a snooze are taken for a time since the epoch, which has passed."""
    return changed(Execution._raised, ("self._sources.wall_time() + seconds", "seconds"))


def jitter_shortens_the_pause() -> Defect:
    """What is drawn as jitter is taken from the pause, not added to it."""
    return changed(retry_policy.decide, ("at += uniform", "at -= uniform"))


def a_jobs_own_max_attempts_are_ignored() -> Defect:
    """A crashed job has the attempts of its handler, whatever was said when it was enqueued."""
    return changed(retry_policy.decide, ("max_attempts or options.max_attempts", "options.max_attempts"))


def a_jobs_own_time_limit_is_ignored() -> Defect:
    """A run has the time limit of its handler, whatever was said when the job was enqueued."""
    return changed(ActiveRuns._begin, ("run.time_limit or options.time_limit", "options.time_limit"))


def the_last_attempt_is_not_made() -> Defect:
    """A job that was lost with its worker is given up one attempt too early."""
    return changed(retry_policy.has_attempts_left, ("attempts <= most", "attempts < most"))


def an_attempt_that_was_not_made_counts() -> Defect:
    """A job that is accepted with all its attempts used up ends with one more than it has had."""
    return changed(Execution._used_up, ("report._replace(attempts=-1)", "report"))


def who_returns_after_the_time_limit_has_succeeded() -> Defect:
    """A handler that swallows the cancellation of its time limit and returns ends its job with success."""
    return changed(Execution._returned, ("if run.stop_reason is StopReason.OVERTIME:", "if False:"))


def the_error_of_a_crash_is_not_stored() -> Defect:
    """A run that failed leaves no error with its job, only a line in its history."""
    return changed(Execution._report, ("RunReport(result, json, brief(", "RunReport(result, None, brief("))


def a_result_of_nothing_leaves_the_old_one() -> Defect:
    """A run that returns nothing leaves the result of an earlier run."""
    return changed(execution._succeeded, ("RunReport(json, None", "RunReport(json or None, None"))


def a_grace_lasts_a_thousand_times_as_long() -> Defect:
    """A handler that ignores its cancellation keeps its job far beyond its grace: seconds and milliseconds mixed up."""
    return changed(ActiveRuns.stop_run, ("call_later(self.options.grace,", "call_later(1000 * self.options.grace,"))


def draining_gives_no_grace() -> Defect:
    """When the runner ends, all handlers are canceled at once, not only those that would not end by themselves."""
    return changed(ActiveRuns.drain, ("if run.continuous or", "if not run.continuous or"))


def jobs_that_come_while_draining_are_run() -> Defect:
    """A job that was accepted just before the runner began to end is begun all the same."""
    return changed(ActiveRuns._begin, ("if self.draining or self.busy", "if self.busy"))


def a_plain_function_hears_late_that_it_is_to_stop() -> Defect:
    """`stopping` of a plain function turns true only when its grace is over."""
    return changed(BlockingJob.stopping, ("self._announced.is_set()", "self._stopped.is_set()"))


# Slots and places


def a_lane_that_fails_keeps_its_places() -> Defect:
    """Places of the cap that a worker pool had taken as its accept failed are never given back."""
    return changed(
        WorkerPool._fill,
        (
            "except BaseException:\n                self._slot_limit.give_back(wanted)\n",
            "except BaseException:\n                pass\n",
        ),
    )


def places_without_jobs_are_kept() -> Defect:
    """Of the places that a worker pool has taken for an accept, those are not given back for which no job came."""
    return changed(WorkerPool._fill, ("self._slot_limit.give_back(wanted - len(found))", "pass"))


def a_place_for_one_who_has_gone_is_lost() -> Defect:
    """A worker pool that is canceled as its turn at the cap comes takes the place with it."""
    return changed(SlotLimit._turn, ("self.give_back(1)  # canceled", "pass  # canceled"))


def fewer_slots_stop_nobody() -> Defect:
    """A handler that is given fewer slots while it runs goes on with the jobs that are too many."""
    return changed(WorkerPool._rotate, ("self._stop_excess()", "pass"))


def jobs_that_end_are_stopped_before_continuous_ones() -> Defect:
    """When there are more jobs than slots, those are stopped first that would end by themselves."""
    return changed(rotation.excess, ("not run.continuous", "run.continuous"))


def the_youngest_gives_way() -> Defect:
    """Of continuous jobs the one gives up its slot that was started last."""
    return changed(rotation.rotation, ("key=_began)", "key=_began, reverse=True)"))


def continuous_jobs_give_way_to_what_comes_after_them() -> Defect:
    """Jobs of any priority count as waiting for the slot of a continuous one, which is then accepted again at once."""
    return changed(
        WorkerPool.reschedule,
        (
            "await self.count_due_up_to({priority for _, priority in continuous}, len(running) + leaving)",
            "dict.fromkeys((each for _, each in continuous), await self.count_due(len(running) + leaving))",
        ),
    )


def handlers_in_exact_order_spread_as_well() -> Defect:
    """The option fifo is not passed on to accept."""
    return changed(WorkerPool._accept, ("1 if self.options.fifo else ", ""))


def a_young_job_that_is_canceled_is_not_looked_at() -> Defect:
    """What was canceled between its accept and the watch on canceled jobs is not told to its handler."""
    return changed(WorkerPool._follow_cancellations, ("if young:", "if False:"))


def keep_and_keep_failed_are_mixed_up() -> Defect:
    """A handler declares how long failed jobs are kept for those that succeeded, and the other way round."""
    return changed(
        WorkerPool._prepare_type,
        ("Retention(options.keep, options.keep_failed)", "Retention(options.keep_failed, options.keep)"),
    )


def started_is_told_too_early() -> Defect:
    """Who runs handlers is told that all have started as soon as one has."""
    return changed(
        Runner._prepared, ("            if not self._unprepared:\n", "            if self._unprepared is not None:\n")
    )


# Backoff


def the_first_pause_is_doubled() -> Defect:
    """The pause after the first crash is twice as long as it should be."""
    return changed(retry_policy.backoff, ("min(crashes - 1,", "min(crashes,"))


def a_healthy_run_does_not_end_the_row_of_crashes() -> Defect:
    """A crash after a long healthy run counts as one more in a row."""
    return changed(retry_policy.crashes_in_a_row, ("1 if was_healthy else before + 1", "before + 1"))


# Periodic jobs


def the_ticker_waits_for_the_next_look_at_the_clock() -> Defect:
    """A tick comes when the ticker looks whether the clock has jumped, and not at its time."""
    return changed(Ticker.run, ("min(max(wait, _HOLDOFF), _CLOCK_CHECK)", "_CLOCK_CHECK"))


def a_tick_does_not_wait_for_the_one_before() -> Defect:
    """Periodic jobs overlap although they should not."""
    return changed(ticker._in_the_way, ("if periodic.overlap or ", "if True or "))


def the_first_of_several_ticks_is_remembered() -> Defect:
    """Of several ticks that are made up for, the first is remembered as the last: the others come once more."""
    return changed(ticker.add_due, ("id, newest = tick_id(tick), tick", "id, newest = tick_id(tick), ticks[0]"))


def ticks_come_while_the_type_is_paused() -> Defect:
    """A pause of the type does not keep its ticks from being added."""
    return changed(ticker._in_the_way, ("if await unit.is_paused(keys):", "if False:"))


def one_missed_tick_too_few_is_made_up_for() -> Defect:
    """Of more missed ticks than are made up for, one less comes than is promised."""
    return changed(schedule.made_up_since, ("range(MOST_MADE_UP + 1)", "range(MOST_MADE_UP)"))


def a_cron_tick_in_the_next_second_is_skipped() -> Defect:
    """The time after which the next tick is looked for is rounded up: a tick at that second is passed over."""
    return changed(schedule.Cron.next_after, ("math.floor(max(t, -1.0))", "math.ceil(max(t, -1.0))"))


# Numbers


def scheduled_jobs_are_counted_as_pending() -> Defect:
    """The stats take jobs whose time has not come for pending, and those whose time has come for scheduled."""
    return changed(stats.state_of, ("run_at.timestamp() > now", "run_at.timestamp() < now"))


def crashed_jobs_are_counted_as_scheduled() -> Defect:
    """The stats look at the oldest event of a waiting job, not at the newest, for whether its run has crashed."""
    return changed(stats.state_of, ("history[0].kind", "history[-1].kind"))


ALL = tuple(
    map(
        Mutant,
        (
            one_heartbeat_per_timeout,
            a_shorter_timeout_does_not_quicken_the_heartbeat,
            who_was_asked_to_end_has_no_heartbeat,
            heartbeats_end_before_handlers,
            an_end_that_meets_weather_is_given_up,
            the_first_end_of_each_further_batch_is_lost,
            a_run_that_a_handler_has_ended_goes_on_counting,
            an_abandoned_job_is_ended_twice,
            the_seconds_of_a_retry_are_milliseconds,
            a_snoozed_job_runs_at_once,
            jitter_shortens_the_pause,
            a_jobs_own_max_attempts_are_ignored,
            a_jobs_own_time_limit_is_ignored,
            the_last_attempt_is_not_made,
            an_attempt_that_was_not_made_counts,
            who_returns_after_the_time_limit_has_succeeded,
            the_error_of_a_crash_is_not_stored,
            a_result_of_nothing_leaves_the_old_one,
            a_grace_lasts_a_thousand_times_as_long,
            draining_gives_no_grace,
            jobs_that_come_while_draining_are_run,
            a_plain_function_hears_late_that_it_is_to_stop,
            a_lane_that_fails_keeps_its_places,
            places_without_jobs_are_kept,
            a_place_for_one_who_has_gone_is_lost,
            fewer_slots_stop_nobody,
            jobs_that_end_are_stopped_before_continuous_ones,
            the_youngest_gives_way,
            continuous_jobs_give_way_to_what_comes_after_them,
            handlers_in_exact_order_spread_as_well,
            a_young_job_that_is_canceled_is_not_looked_at,
            keep_and_keep_failed_are_mixed_up,
            started_is_told_too_early,
            the_first_pause_is_doubled,
            a_healthy_run_does_not_end_the_row_of_crashes,
            the_ticker_waits_for_the_next_look_at_the_clock,
            a_tick_does_not_wait_for_the_one_before,
            the_first_of_several_ticks_is_remembered,
            ticks_come_while_the_type_is_paused,
            one_missed_tick_too_few_is_made_up_for,
            a_cron_tick_in_the_next_second_is_skipped,
            scheduled_jobs_are_counted_as_pending,
            crashed_jobs_are_counted_as_scheduled,
        ),
    )
)
