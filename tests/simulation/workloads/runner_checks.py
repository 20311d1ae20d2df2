"""What must be so while handlers run: of their slots, turns, ends and signs of life, and of jobs that wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from jobs_service import JobState, JobType
from jobs_service.testing import EPOCH
from tests.simulation.model_job import READY, RUNNING
from tests.simulation.weather import CATCHES_UP
from tests.simulation.workloads.handled import MOMENT, Held
from tests.simulation.workloads.runner_state import CONTINUOUS, RunnerState

_NOTICED: Final = 0.2
"""Seconds within which a handler is told that its job was canceled."""

_REQUESTS: Final = 6
_SLACK: Final = 1.0
"""Seconds within which what a handler's end asks for is written, and what is due is begun."""
_INTERVAL: Final = 60.0
_CHURN: Final = 20
"""What handlers have that say nothing of these."""


class RunnerChecks:
    """Complains of handlers and of their jobs, by what is known of them."""

    def __init__(self, known: RunnerState) -> None:
        self._run = known.run
        self._known = known

    def check_start(self, held: Held, active: list[Held]) -> None:
        """A handler was told what was accepted, in time, as often as it may be, and had a slot."""
        job, run, accepted = held.job, self._run, held.accepted
        most = accepted.most_attempts(self._known.options[job.type])
        if most is not None and job.attempts > most:
            self._known.wrong(accepted, f"attempts: {{}} runs as number {job.attempts}, {most} at most")
        given = (job.attempts, job.max_attempts, job.time_limit)
        if given != (accepted.job.notes.attempts, *accepted.limits):
            self._known.wrong(accepted, f"given: the handler of {{}} was told {given}, not what was accepted")
        leaving = run.leaving.get(held.process)
        if leaving is not None and held.began > leaving and not held.process.pauses:
            self._known.wrong(
                accepted, f"drained: {{}} was begun {held.began - leaving:.3f} s after its process was to stop"
            )
        if run.crashes.has_crashed(held.process):
            return  # A lane that was restarted knows nothing of handlers that do not end.
        slots = self._known.slots_of(held.process, job.type)
        busy = sum(each.job.type == job.type for each in active)
        if busy > slots and self._known.slots_changed.get((held.process, job.type), -1.0) < held.began - MOMENT:
            run.complain(f"slots: {held.process} runs {busy} jobs of {job.type!r}, {slots} at most")
        if self._known.max_jobs is not None and len(active) > self._known.max_jobs:
            run.complain(f"slots: {held.process} runs {len(active)} jobs, {self._known.max_jobs} at most")

    def check_stopped(self, held: Held) -> None:
        """A handler is asked to give its job back when its process ends, when its slot is gone, and in turn."""
        assert held.asked is not None
        run, process, options = self._run, held.process, self._known.options[held.job.type]
        leaving = run.leaving.get(process)
        is_excess = (process, held.job.type) in self._known.slots_changed
        if leaving is not None:
            if not held.continuous and not is_excess and held.asked < leaving + options["grace"] - MOMENT:
                self._known.wrong(
                    held.accepted,
                    f"drained: {{}} was canceled {held.asked - leaving:.3f} s after its process was to stop; "
                    f"its grace is {options['grace']} s",
                )
        elif is_excess:
            self._check_order(held)
        elif not held.continuous:
            self._known.wrong(held.accepted, "turns: {} would have ended by itself, and had to give up its slot")
        elif self._known.max_jobs is None and not run.crashes.has_crashed(process):
            self._check_turn(held)
            self._check_order(held)

    def check_ending(self, held: Held) -> None:
        """Where a process ends, who would end by itself has a grace for that before it is asked to."""
        assert held.asked is not None
        leaving = self._run.leaving.get(held.process)
        if leaving is None or held.continuous or held.process.sources.worker in self._run.quiet.stopping:
            return
        grace = self._known.options[held.job.type]["grace"]
        if held.began <= leaving and held.asked < leaving + grace - MOMENT:
            self._known.wrong(
                held.accepted,
                f"drained: {{}} was asked to end {held.asked - leaving:.3f} s after its process was to stop; its grace "
                f"is {grace} s",
            )

    def _check_turn(self, held: Held) -> None:
        """Continuous jobs give way to others that wait, so many at most in each interval."""
        assert held.asked is not None
        run, options, steady = self._run, self._known.options[held.job.type], self._run.quiet.steady_since()
        turns = self._known.turns.setdefault((held.process, held.job.type), [])
        turns.append(held.asked)
        # Each round asks the store who waits, before anybody is asked to give way.
        longest = 2 * _REQUESTS * run.world.cluster.latency + MOMENT
        window = held.asked - options.get("interval", _INTERVAL) + longest
        if len([each for each in turns if each > window]) > options.get("max_churn", _CHURN) and steady < window:
            self._known.wrong(held.accepted, f"turns: {{}} is one too many of {turns} that had to give up their slots")
        if steady < held.asked - _SLACK and not any(self._waiters(held)):
            self._known.wrong(held.accepted, "turns: {} had to give up its slot, but nobody waits who comes before it")

    def _waiters(self, held: Held) -> Iterator[Any]:
        """Yield the ids of jobs that waited a moment ago, and that do not come after a job that runs."""
        history, since = self._run.history, self._run.world.loop.time() - _SLACK
        for type, id in history.known():
            if type == held.job.type:
                states = history.states(type, id)
                first = next((number for number, state in enumerate(states) if state.time >= since), len(states))
                job = history.model.jobs.get((type, id))
                waited = any(state.state is JobState.PENDING for state in states[max(first - 1, 0) :])
                if waited and (job is None or job.priority <= held.accepted.job.priority):
                    yield id

    def _check_order(self, held: Held) -> None:
        """Who was asked to give up its slot runs longest, and jobs that end by themselves are asked last."""
        assert held.asked is not None
        for each in self._known.active.get(held.process, ()):
            same = each.job.type == held.job.type and (each.asked is None or each.asked > held.asked)
            if not same or each.began > held.asked - MOMENT or each.was_paused or held.was_paused:
                continue
            if each.continuous and not held.continuous:
                self._known.wrong(held.accepted, f"turns: {{}} was stopped, but {each.job.id!r} never ends by itself")
            older = each.accepted.at < held.accepted.at - MOMENT
            equal = each.accepted.job.priority == held.accepted.job.priority and each.continuous == held.continuous
            if older and equal:
                self._known.wrong(held.accepted, f"turns: {{}} was stopped, but {each.job.id!r} runs for longer")

    def check_over(self, held: Held) -> None:
        """A handler was told in time that its time was over, and was not waited for longer than its grace."""
        assert held.over is not None
        run, lock, options = self._run, held.job.lock, self._known.options[held.job.type]
        self.check_alive(lock)
        if lock not in self._known.ended:
            self._known.unwritten[lock] = held
        if held.was_paused:
            return
        until = held.over if held.asked is None else held.asked
        limit = held.accepted.time_limit(options)
        if limit is not None and until - held.began > limit + 2 * MOMENT:
            self._known.wrong(
                held.accepted, f"overtime: {{}} ran for {until - held.began:.3f} s, its limit is {limit} s"
            )
        leaving = run.leaving.get(held.process)
        if leaving is not None:
            grace = 0.0 if held.continuous else options["grace"]
            if until > max(leaving, held.began) + grace + 2 * MOMENT:
                self._known.wrong(
                    held.accepted, f"drained: {{}} went on for {until - leaving:.3f} s, its grace is {grace} s"
                )
        if held.asked is None or run.quiet.steady_since() > held.asked:
            return
        given_up = held.asked + options["grace"] + _SLACK + _REQUESTS * run.world.cluster.latency
        if held.over > given_up and self._known.ended.get(lock, held.over) > given_up:
            self._known.wrong(held.accepted, f"grace: {{}} was not given up {options['grace']} s after it was to end")

    def check_alive(self, lock: bytes) -> None:
        """A job was seen alive three times in each timeout; those that have just begun may wait for half of it."""
        accepted, run = self._known.accepted[lock], self._run
        now, timeout = run.world.loop.time(), run.history.model.timeouts.get(accepted.type)
        since = max(self._known.alive[lock], self._known.timeouts_changed.get(accepted.type, 0.0))
        if timeout is None or lock in self._known.ended or not accepted.process.alive:
            return
        if run.quiet.steady_since() > since:
            return
        if now - since > timeout / 2 + _SLACK / 2 + 2 * _REQUESTS * run.world.cluster.latency:
            self._known.wrong(
                accepted, f"heartbeat: {{}} was silent for {now - since:.3f} s, its timeout is {timeout} s"
            )

    def watch(self) -> None:
        """Look whether the ends of handlers are written, and whether what is due runs where there is room."""
        run = self._run
        now, steady = run.world.loop.time(), run.quiet.steady_since()
        patience = 2 * _SLACK + 2 * _REQUESTS * run.world.cluster.latency
        for lock, held in [*self._known.unwritten.items()]:
            assert held.over is not None
            if lock in self._known.ended or not held.process.alive or held.was_paused:
                del self._known.unwritten[lock]
            elif now - max(held.over, steady) > patience:
                del self._known.unwritten[lock]
                self._known.wrong(held.accepted, f"unwritten: the handler of {{}} ended {now - held.over:.3f} s ago")
        if now - steady > patience and not run.is_over:
            self._check_slots(now, patience)
            self._check_idle(now - patience)

    def _check_slots(self, now: float, patience: float) -> None:
        """Where there are fewer slots than there were, what is too much was asked to end."""
        for (process, type), changed in [*self._known.slots_changed.items()]:
            if not process.alive or process in self._run.leaving or process.pauses:
                continue
            if changed < now - patience and self._run.quiet.steady_since() < changed:
                running = [each for each in self._known.active.get(process, ()) if each.job.type == type]
                count = sum(each.asked is None and not each.has_ended_job for each in running)
                if count > self._known.slots_of(process, type):
                    self._run.complain(f"slots: {process} goes on with {count} jobs of {type!r}")

    def _check_idle(self, since: float) -> None:
        """Jobs that are due do not wait where there is room for them."""
        run, jobs = self._run, self._run.history.model.jobs
        waiting: list[tuple[JobType, Any, float]] = []
        for (type, id), job in jobs.items():
            if type in self._known.options and job.state is READY and run.history.states(type, id)[-1].time < since:
                waiting.append((type, id, 0.0 if job.run_at is None else job.run_at))
        if not waiting or self._known.resumed_at > since:
            return
        for process, started in run.started.items():
            # Whoever waits for a time looks at the clock now and then only.
            noticed = run.moved_clocks.get(process, -CATCHES_UP) + CATCHES_UP
            moved = max(started, self._known.moved.get(process, 0.0), noticed)
            if moved > since or process in run.leaving or not process.alive or not process.running:
                continue
            worker = str(process).replace(".", "/")
            if process.sources.worker in run.quiet.hushed | run.quiet.stopping:
                continue
            locks = {
                (key[0], job.lock)
                for key, job in jobs.items()
                if job.state is RUNNING and worker in (event[2] for event in job.notes.history[:1])
            }
            locks |= {(held.job.type, held.job.lock) for held in self._known.active.get(process, ())}
            if self._known.max_jobs is not None and len(locks) >= self._known.max_jobs:
                continue
            wall = process.clock.wall_time() - _SLACK
            for type, id, run_at in waiting:
                if run_at < wall and sum(each == type for each, _ in locks) < self._known.slots_of(process, type):
                    run.complain(f"idle: {type!r}/{id!r} waits, and {process} has room for it")
                    return

    def check_cancellation(self, held: Held) -> None:
        """A handler was told soon that its job was canceled, or another's; it holds while nothing takes time."""
        taken = self._known.taken.get(held.job.lock)
        if taken is None or not held.process.alive or self._run.quiet.quick_since() > max(taken, held.began):
            return
        now = self._run.world.loop.time()
        told = min(each for each in (held.asked, held.ended_job, now) if each is not None) - max(taken, held.began)
        # On a machine a request has several steps, and before each a thread may stand still.
        requests = _REQUESTS if self._run.machine is None else 2 * _REQUESTS
        if told > _NOTICED + requests * self._run.world.cluster.latency:
            self._run.complain(
                f"told late: the handler of {held.job.type!r}/{held.job.id!r} ({held.fate}) went on for {told:.3f} s "
                "after its job was canceled or taken away"
            )

    def check_turns(self) -> None:
        """Where jobs have waited for two intervals, somebody has given up a slot for them meanwhile."""
        run, options = self._run, self._known.options[CONTINUOUS]
        long_ago = run.world.loop.time() - 2 * options["interval"] - options["grace"] - 1.0
        if self._known.max_jobs is not None or max(run.quiet.quick_since(), self._known.turns_resumed_at) > long_ago:
            return
        for process, active in self._known.active.items():
            handlers = [held for held in active if held.job.type == CONTINUOUS]
            if not process.alive:  # what was killed is over, also where its code has not noticed it
                continue
            slots = self._known.slots_of(process, CONTINUOUS)
            if len(handlers) < slots or any(held.began > long_ago for held in handlers):
                continue
            for id in self._waiting(long_ago, EPOCH + long_ago + process.clock.ahead, handlers):
                run.complain(f"turns: {id!r} waits, and no continuous job of {process} has given up its slot")
                return

    def _waiting(self, since: float, due_by: float, handlers: list[Held]) -> Iterator[Any]:
        """Yield the continuous jobs that have been waiting since then, and come before those that run."""
        first = min(held.job._record.priority for held in handlers)
        for (type, id), job in self._run.history.model.jobs.items():
            if type == CONTINUOUS and job.state is READY and job.priority <= first:
                due = job.run_at is None or job.run_at < due_by
                if due and self._run.history.states(type, id)[-1].time < since:
                    yield id
