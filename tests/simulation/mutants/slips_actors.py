"""Slips in the actors and their supervision, made without a look at what the simulation checks."""

from __future__ import annotations

from jobs_service.actors.activity_monitor import ActivityMonitor
from jobs_service.actors.context import retried
from jobs_service.actors.notifier import Notifier
from jobs_service.actors.process_monitor import ProcessMonitor
from jobs_service.actors.sampler import Sampled, Sampler
from jobs_service.actors.subscriptions import Hub, Mailbox
from jobs_service.actors.type_monitor import TypeMonitor
from jobs_service.actors.type_server import TypeServer
from jobs_service.batching import pipelined
from jobs_service.batching.group_commit import GroupCommit
from jobs_service.batching.staggering import Stagger
from jobs_service.supervision.dynamic import DynamicSupervisor
from jobs_service.supervision.patient import PatientSupervisor
from jobs_service.supervision.supervising import Supervising
from tests.simulation.mutants.mutant import Defect, Mutant, changed

# Lost, due and expired jobs


def a_batch_that_was_cut_counts_as_the_last() -> Defect:
    """Lost jobs that did not fit into a transaction because of their size are not looked at again."""
    return changed(ActivityMonitor._re_enqueue, ("if batch.more:", "if batch.more and len(batch.ids) == size:"))


def what_expires_later_is_not_looked_at_again() -> Defect:
    """A monitor that finds the next expiry in the future never comes back to it by itself."""
    return changed(
        ActivityMonitor._remove_expired,
        ("self._expired_at + self._context.settings.expiry_check_period", "_NEVER"),
    )


def expiry_is_a_time_of_the_loops_clock() -> Defect:
    """When a job expires is compared with the loop's clock, not with the wall clock."""
    return changed(
        ActivityMonitor._remove_expired, ("expiry > self._context.sources.wall_time()", "expiry > self._time()")
    )


def a_wall_clock_that_jumps_is_not_looked_at() -> Defect:
    """Who waits for a scheduled job sleeps until its time as it was foreseen, whatever the wall clock does."""
    return changed(ActivityMonitor._wait, ("sources.wall_time(), _CLOCK_CHECK)", "sources.wall_time())"))


def a_sample_is_dated_before_its_read() -> Defect:
    """What was active while a slow read went on counts as silent since before that read."""
    return changed(
        Sampler._sample,
        (
            "        found = await self._context.retried(\n",
            "        now = asyncio.get_running_loop().time()\n        found = await self._context.retried(\n",
        ),
        ("        now = asyncio.get_running_loop().time()\n        for sampled", "        for sampled"),
    )


def a_shorter_timeout_is_sampled_in_the_old_rhythm() -> Defect:
    """A type whose timeout has changed is sampled next when the old timeout says so."""
    return changed(Sampler._sample, ("if timeout != sampled.timeout and", "if timeout is None and"))


def a_quiet_monitor_is_not_told_of_new_activity() -> Defect:
    """A monitor with nothing to wait for hears of changed timeouts only, not of changed stamps."""
    return changed(Sampled.take, (" and sample.stamp == self.stamp", ""))


def pauses_of_those_who_collide_have_no_bound() -> Defect:
    """The pause before the next attempt doubles with each collision, for ever."""
    return changed(Stagger.learn, ("min(self._longest, ", "max(0.0, "))


def lost_jobs_are_taken_with_the_old_timeout() -> Defect:
    """A timeout that was made longer since the samples were taken does not keep jobs from being taken for lost."""
    return changed(ActivityMonitor._take_for_lost, ("if present == timeout else", "if present is not None else"))


# Types that are awake, or subscribed to


def a_lost_watch_on_awake_types_is_not_renewed() -> Defect:
    """When the watch on the types that are awake is lost, nobody looks until the next check of all types."""
    return changed(
        TypeServer._awake_changed,
        (
            "self._read_at = max(now + _LOST_WATCH_PAUSE if lost else now, self._held_off_until)",
            "self._read_at = self._read_at if lost else max(now, self._held_off_until)",
        ),
    )


def who_subscribes_while_notifiers_start_is_forgotten() -> Defect:
    """The list of types to be served is emptied after notifiers were started, not before."""
    return changed(
        TypeServer._start_notifiers,
        ("wanted, self._subscribed = self._subscribed, {}", "wanted = self._subscribed.copy()"),
        (
            "group.create_task(self._start_notifier(keys))",
            "group.create_task(self._start_notifier(keys))\n        self._subscribed = {}",
        ),
    )


def who_subscribes_while_a_notifier_stops_is_not_served() -> Defect:
    """A subscription that comes while an unused notifier is being stopped gets no new one."""
    return changed(
        TypeServer._stop_unused_notifiers,
        (
            "self._subscribed |= {keys: None for keys in self._hub.types() if keys not in self._notifiers}",
            "self._subscribed |= {}",
        ),
    )


def a_notifier_of_subscribed_jobs_is_stopped() -> Defect:
    """A notifier is stopped at the second check whether somebody has subscribed meanwhile or not."""
    return changed(
        TypeServer._stop_unused_notifiers, ("if keys in unused and keys in self._unused", "if keys in self._unused")
    )


def subscriptions_are_forgotten_with_the_type_server() -> Defect:
    """A type server that was started again does not look who had subscribed before."""
    return changed(TypeServer.init, ("for keys in self._hub.types():", "for keys in ():"))


def types_are_woken_only_once_their_time_has_come() -> Defect:
    """A sleeping type is woken when its jobs are due, not a moment ahead."""
    return changed(TypeServer._until_alarm, ("self._next_alarm - _AHEAD -", "self._next_alarm -"))


def only_the_first_page_of_types_is_woken() -> Defect:
    """Of a store whose types must be woken only the first hundred are."""
    return changed(TypeServer._wake_all_in, ("while begin is not None:", 'while begin == b"":'))


# Subscriptions


def what_is_asked_during_a_look_is_forgotten() -> Defect:
    """A notifier that is told of activity while it looks does not look again."""
    return changed(
        Notifier.handle,
        ("        self._asked = False\n", ""),
        ("        now = self._time()\n", "        now = self._time()\n        self._asked = False\n"),
    )


def who_subscribes_during_a_look_is_told_what_it_saw() -> Defect:
    """Somebody who adds a job and subscribes while a look goes on is told of the state before that."""
    return changed(Notifier._report, ("if target.number > asking:", "if False:"))


def new_subscriptions_to_a_followed_type_are_not_looked_at() -> Defect:
    """Who subscribes to a job of a type that is followed already hears of it when it changes next."""
    return changed(Notifier.handle, ("await self._report_jobs(fresh)", "pass"))


def what_does_not_fit_into_one_read_is_not_told() -> Defect:
    """Of jobs that have changed, or are subscribed to, only the first batch is read."""
    return changed(Notifier._report, ("await self._report_jobs(data_keys[len(raws) :])", "pass"))


def progress_alone_is_no_news() -> Defect:
    """Subscribers are not told when only result, error or progress of a job have changed."""
    return changed(
        Notifier._report_to,
        ("            and run_data.parts_of(before.run_data) == run_data.parts_of(record.run_data)\n", ""),
    )


def another_time_is_no_news() -> Defect:
    """Subscribers are not told when a pending job is to run at another time."""
    return changed(Notifier._report_to, ("            and next_run(before) == next_run(record)\n", ""))


def the_result_in_an_event_is_the_data() -> Defect:
    """What an event, and so `result`, has as the result of a run is the job's data."""
    return changed(Notifier._report_to, ("run_data.result_of(record.run_data),", "json_data.decode(record.json),"))


def events_have_no_errors() -> Defect:
    """What a failed run has left as its error is not in the event."""
    return changed(Notifier._report_to, ("run_data.error_of(record.run_data),", "None,"))


def events_have_the_attempts_of_the_event_before() -> Defect:
    """The number of attempts in an event is that of the record which was told of before."""
    return changed(
        Notifier._report_to,
        (
            "                run_data.attempts_of(record.run_data),\n                next_run",
            "                run_data.attempts_of((before or record).run_data),\n                next_run",
        ),
    )


def a_slow_subscriber_is_told_what_was_first() -> Defect:
    """An event that was not taken yet stays where it is when a newer one comes."""
    return changed(Mailbox.put, ("self._newest[target] = event", "self._newest.setdefault(target, event)"))


def a_change_within_a_state_hides_the_event() -> Defect:
    """An untaken event is dropped when the job is in the state that the subscriber knows, whatever else has changed."""
    return changed(Mailbox.put, ("is_same(event, target.taken)", "event.state is target.taken.state"))


def a_subscriber_is_discarded_with_its_neighbours() -> Defect:
    """When one of several who have subscribed to a job has heard its end, the others are forgotten."""
    return changed(Hub.discard, ("            if not targets:\n", "            if not targets or target.ended:\n"))


def activity_during_the_holdoff_is_not_seen() -> Defect:
    """A type monitor waits out its holdoff before it watches, and takes what it finds then for known."""
    return changed(
        TypeMonitor.run,
        (
            "                    await asyncio.sleep(max(held_off_until, rests_until) - time())\n",
            "                    await asyncio.sleep(max(held_off_until, rests_until) - time())\n"
            "                    stamp, _ = await self._context.read(self._read_stamp)\n",
        ),
    )


# Operations that share transactions


def the_second_half_of_too_much_is_not_done() -> Defect:
    """Of operations that were too much for one transaction the second half is never answered."""
    return changed(GroupCommit._run, ("batch = batch[middle:]", "return"))


def what_an_iterable_raises_is_swallowed() -> Defect:
    """Jobs whose iterable fails in the middle are added as far as they came, and nobody is told."""
    return changed(pipelined.in_order, ("failure is not None:", "failure is not None and not results:"))


def the_rest_of_a_part_that_did_not_fit_is_passed_over() -> Defect:
    """Of a batch whose records turned out too large for one transaction only the first part is done."""
    return changed(pipelined.in_parts, ("done += len(found)", "done += len(part)"))


def weather_is_waited_out_a_few_times_only() -> Defect:
    """An operation that meets what passes by itself is given up when the pause is at its longest."""
    return changed(
        retried,
        (
            "if not (error.retryable or is_damage) or isinstance(error, unless):",
            "if not (error.retryable or is_damage) or isinstance(error, unless) "
            "or pause >= settings.retry_backoff_max:",
        ),
    )


# Dead processes


def dead_processes_are_forgotten_before_their_jobs_are_taken() -> Defect:
    """The lock of a dead process is let go of first: who is killed in between leaves its jobs to their timeout."""
    return changed(
        ProcessMonitor._bury,
        (
            "        try:\n",
            "        await context.retried(lambda: context.store.forget_instances([*dead]))\n        try:\n",
        ),
        (
            "        await context.retried(lambda: context.store.forget_instances([*dead]))\n        log",
            "        log",
        ),
    )


def only_the_first_page_of_a_dead_processes_jobs_is_taken() -> Defect:
    """Of all running jobs only the first page is searched for those of dead processes."""
    return changed(ProcessMonitor._take_all, ("while after is not None:", "while False:"))


# Supervision


def a_restart_that_fails_is_not_tried_again() -> Defect:
    """A child whose start fails when it is started again stays away."""
    return changed(Supervising._start_again, ("self._child_ended(child, life, error)", "pass"))


def a_child_that_did_not_start_keeps_its_name() -> Defect:
    """After a start that failed a dynamic supervisor takes the child for there."""
    return changed(
        DynamicSupervisor.start_child,
        ("            self._gone(child)\n", ""),
    )


def a_pause_grows_for_ever() -> Defect:
    """A child that has run calmly for long is started again after as long a pause as if it had not."""
    return changed(PatientSupervisor._next_pause, ("before is None or lived >= self._calm", "before is None"))


ALL = tuple(
    map(
        Mutant,
        (
            a_batch_that_was_cut_counts_as_the_last,
            what_expires_later_is_not_looked_at_again,
            expiry_is_a_time_of_the_loops_clock,
            a_wall_clock_that_jumps_is_not_looked_at,
            a_sample_is_dated_before_its_read,
            a_shorter_timeout_is_sampled_in_the_old_rhythm,
            a_quiet_monitor_is_not_told_of_new_activity,
            pauses_of_those_who_collide_have_no_bound,
            lost_jobs_are_taken_with_the_old_timeout,
            a_lost_watch_on_awake_types_is_not_renewed,
            who_subscribes_while_notifiers_start_is_forgotten,
            who_subscribes_while_a_notifier_stops_is_not_served,
            a_notifier_of_subscribed_jobs_is_stopped,
            subscriptions_are_forgotten_with_the_type_server,
            types_are_woken_only_once_their_time_has_come,
            only_the_first_page_of_types_is_woken,
            what_is_asked_during_a_look_is_forgotten,
            who_subscribes_during_a_look_is_told_what_it_saw,
            new_subscriptions_to_a_followed_type_are_not_looked_at,
            what_does_not_fit_into_one_read_is_not_told,
            progress_alone_is_no_news,
            another_time_is_no_news,
            the_result_in_an_event_is_the_data,
            events_have_no_errors,
            events_have_the_attempts_of_the_event_before,
            a_slow_subscriber_is_told_what_was_first,
            a_change_within_a_state_hides_the_event,
            a_subscriber_is_discarded_with_its_neighbours,
            activity_during_the_holdoff_is_not_seen,
            the_second_half_of_too_much_is_not_done,
            what_an_iterable_raises_is_swallowed,
            the_rest_of_a_part_that_did_not_fit_is_passed_over,
            weather_is_waited_out_a_few_times_only,
            dead_processes_are_forgotten_before_their_jobs_are_taken,
            only_the_first_page_of_a_dead_processes_jobs_is_taken,
            a_restart_that_fails_is_not_tried_again,
            a_child_that_did_not_start_keeps_its_name,
            a_pause_grows_for_ever,
        ),
    )
)
