"""Defects of the actors: who notices lost jobs, tells subscribers, and commits for many callers at once."""

from __future__ import annotations

from jobs_service.actors.activity_monitor import ActivityMonitor
from jobs_service.actors.notifier import Notifier
from jobs_service.actors.sampler import Sampler
from jobs_service.actors.subscriptions import Mailbox
from jobs_service.actors.type_monitor import TypeMonitor
from jobs_service.actors.type_server import TypeServer
from jobs_service.batching import group_commit
from jobs_service.batching.operations import SharedAccept
from jobs_service.layer import awake_types
from jobs_service.layer.unit_of_work import UnitOfWork
from tests.simulation.mutants.mutant import Defect, Mutant, changed, together

# The activity monitor


def one_sample_is_enough() -> Defect:
    """A running job is taken for lost as soon as it is seen."""
    return changed(ActivityMonitor._check, ("silent_since = sample.at - sample.timeout", "silent_since = sample.at"))


def no_job_is_ever_lost() -> Defect:
    """The activity monitor re-enqueues nothing."""
    return changed(ActivityMonitor._check, ("self._lost = stamp, sample.timeout", "pass"))


def half_the_timeout_is_enough() -> Defect:
    """A job is taken for lost after half its activity timeout."""
    return changed(ActivityMonitor._check, ("sample.at - sample.timeout", "sample.at - sample.timeout / 2"))


def the_first_timeout_counts() -> Defect:
    """The activity monitor goes on with the timeout that it saw first."""
    return changed(
        ActivityMonitor._check,
        ("if sample.timeout != self._timeout:", "if self._timeout is None:"),
        ("sample.at - sample.timeout", "sample.at - (self._timeout or 0.0)"),
    )


def a_changed_timeout_is_measured_with_old_samples() -> Defect:
    """A changed timeout does not start the measurement anew."""
    return changed(ActivityMonitor._check, ("            history.clear()\n", ""))


def the_monitor_is_quiet_too_early() -> Defect:
    """The activity monitor is told of changes only, although it waits for time to pass."""
    return changed(
        ActivityMonitor._be_quiet_if_clean,
        ('not history or (history[-1].stamp or b"") <= self._clean', "True"),
    )


def scheduled_jobs_are_not_looked_at() -> Defect:
    """The activity monitor never makes a scheduled job ready."""
    return changed(ActivityMonitor._watch_queue, ("_NEVER if run_at is None else run_at", "_NEVER"))


# The sampler


def a_type_is_sampled_once() -> Defect:
    """The sampler forgets a type after its first sample."""
    return changed(Sampler._take_due, ("self._schedule(sampled, self._next_tick(now, sampled.timeout))", "pass"))


def one_sample_per_timeout() -> Defect:
    """A lost job is noticed after up to twice its timeout."""
    return changed(Sampler._next_tick, ("timeout / settings.activity_samples", "timeout"))


# The notifier and the type monitor


def subscriptions_die_with_their_notifier() -> Defect:
    """The hub forgets a type's subscriptions when its notifier ends."""
    return changed(
        Notifier.terminate,
        (
            "self._hub.listen(self._keys, None)",
            "self._hub.listen(self._keys, None); self._hub._targets.pop(self._keys, None)",
        ),
    )


def heartbeats_are_told() -> Defect:
    """Subscribers are told of what does not concern them: the same state again."""
    return together(
        changed(Notifier._report_to, ("before.state is record.state", "False")),
        changed(Mailbox.put, ("is_same(event, target.taken)", "False")),
    )


def removed_jobs_are_not_told_of() -> Defect:
    """Who has subscribed to a job that is removed waits for ever."""
    return changed(
        Notifier._report_to,
        ("target.report(JobEvent(target.keys.type, target.id, JobState.REMOVED, None, None, None))", "pass"),
    )


def only_the_first_batch_is_looked_at() -> Defect:
    """With more subscribed jobs than the notifier reads at once, some are never told of."""
    return changed(Notifier._report, ("await self._report_jobs(data_keys[len(raws) :])", "pass"))


def what_ends_is_not_noted_for_followers() -> Defect:
    """Who follows a type finds the jobs that run, and those that show that they are alive, but no others."""
    return changed(UnitOfWork._changes, ("if not entry.changed or (record is None and not entry.stored):", "if True:"))


def activity_is_watched_after_it_was_read() -> Defect:
    """The type monitor's watch is made in a later transaction than its look at the stamp, after the holdoff."""
    return changed(
        TypeMonitor.run,
        (
            "                    await _change(watch)\n                    rests",
            "                    watch.cancel()\n"
            "                    await asyncio.sleep(held_off_until - time())\n"
            "                    _, watch = await self._context.retried(lambda: self._context.read(self._read_stamp))\n"
            "                    await _change(watch)\n                    rests",
        ),
    )


# The type server


def a_dead_monitor_is_not_noticed() -> Defect:
    """The type server goes on when an activity monitor or a notifier has died."""
    return changed(
        TypeServer.handle,
        ('raise JobsError(f"{message.process.name} ended unexpectedly") from message.cause', "return"),
    )


def types_that_wake_up_are_not_noticed() -> Defect:
    """A type server has monitors for the types that were awake at its start, and looks again only now and then."""
    words = "self._read_at = max(now + _LOST_WATCH_PAUSE if lost else now, self._held_off_until)"
    return changed(TypeServer._awake_changed, (words, "del now"))


def a_job_that_begins_to_run_does_not_wake_its_type() -> Defect:
    """A type is awake only when something else has woken it."""
    return changed(UnitOfWork.watch_over, ("self._watched[keys] = -math.inf", "pass"))


def a_type_is_taken_for_idle_without_a_conflict() -> Defect:
    """A job that begins to run while its type is taken for idle is watched over by nobody."""
    return changed(awake_types.settle, ("_next_time(transaction, keys)", "_next_time(transaction.snapshot, keys)"))


def sleeping_types_are_not_woken() -> Defect:
    """The alarms of sleeping types are passed over."""
    return changed(awake_types.wake_due, ("for key, _ in found:", "for key, _ in found[:0]:"))


# Group commit


def answers_go_to_the_wrong_callers() -> Defect:
    """Of several operations in one transaction each is told what became of another."""
    return changed(
        group_commit._answer, ("zip(batch, answers, strict=False)", "zip(batch, reversed(answers), strict=False)")
    )


def jobs_of_callers_who_have_gone_stay_locked() -> Defect:
    """A job that was accepted for somebody who has been canceled since is not given back."""
    return changed(SharedAccept.answer, ("self._give_back(entry)", "pass"))


ALL = (
    Mutant(one_sample_is_enough),
    Mutant(no_job_is_ever_lost),
    Mutant(half_the_timeout_is_enough),
    Mutant(the_first_timeout_counts),
    Mutant(a_changed_timeout_is_measured_with_old_samples, "calm", ("creators", "deserters", "measurers", "workers")),
    Mutant(the_monitor_is_quiet_too_early),
    Mutant(scheduled_jobs_are_not_looked_at, "calm", ("overseers", "closers")),
    Mutant(a_type_is_sampled_once),
    Mutant(one_sample_per_timeout, "calm", ("creators", "deserters", "workers")),
    Mutant(subscriptions_die_with_their_notifier, "stormy", ("creators", "workers", "followers", "subscribers")),
    Mutant(heartbeats_are_told, "calm", ("creators", "cancelers", "heartbeats", "subscribers", "workers")),
    Mutant(removed_jobs_are_not_told_of, workloads=("creators", "cancelers", "subscribers", "workers")),
    Mutant(only_the_first_batch_is_looked_at, "calm", ("creators", "workers", "followers", "subscribers")),
    Mutant(what_ends_is_not_noted_for_followers),
    Mutant(activity_is_watched_after_it_was_read, "calm", ("followers", "overseers", "closers")),
    Mutant(a_dead_monitor_is_not_noticed, "stormy", ("creators", "workers", "followers", "subscribers")),
    Mutant(types_that_wake_up_are_not_noticed, "calm", ("creators", "deserters", "workers")),
    Mutant(a_job_that_begins_to_run_does_not_wake_its_type),
    Mutant(a_type_is_taken_for_idle_without_a_conflict, workloads=("creators", "workers", "deserters")),
    Mutant(sleeping_types_are_not_woken),
    Mutant(answers_go_to_the_wrong_callers),
    Mutant(jobs_of_callers_who_have_gone_stay_locked, "calm", ("crowds", "overseers", "closers")),
)
