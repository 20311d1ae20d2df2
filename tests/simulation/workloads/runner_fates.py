"""What handlers do: they end well or badly, hang, will not end, or take turns."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from jobs_service import Discard, JobTransaction, Retry, RunningJob, Snooze
from jobs_service.testing import Process
from tests.simulation.client import EFFECTS
from tests.simulation.workloads.handled import MOMENT, OWN, Held
from tests.simulation.workloads.runner_checks import RunnerChecks
from tests.simulation.workloads.runner_state import CONTINUOUS, ONE_SHOT, RunnerState, is_third


class RunnerFates:
    """Does what handlers do, and notes it.

    Args:
        known: where it is noted.
        checks: that are made when a handler begins, is asked to end, and ends.
        random: where is drawn from what a handler does.
    """

    def __init__(self, known: RunnerState, checks: RunnerChecks, random: Random) -> None:
        self._run = known.run
        self._known = known
        self._checks = checks
        self._random = random

    async def handle(self, process: Process, job: RunningJob, fate: str) -> Any:
        """Do in a process what a fate wants of a handler, and return or raise what it returns or raises."""
        time = self._run.world.loop.time
        held = Held(process, job, self._known.accepted[job.lock], fate, time(), process.pauses)
        held.continuous = job.type == CONTINUOUS or (
            self._known.options[ONE_SHOT]["continuous"] is is_third and is_third(job)
        )
        self._known.held[job.lock] = held
        active = self._known.active.setdefault(process, [])
        active.append(held)
        self._checks.check_start(held, active)
        if job.id in self._known.begun:
            self._known.begun[job.id].set()
        try:
            held.returned = await self._act(held)
            return held.returned
        except BaseException as error:
            # Whoever asks says why; one that cancels itself does not.
            if isinstance(error, asyncio.CancelledError) and (fate != "cancel itself" or error.args):
                self._ask(held, error)
            held.failed, held.error = process.clock.wall_time(), error
            raise
        finally:
            active.remove(held)
            held.over = self._known.moved[process] = time()
            if job.id in self._known.when_over:
                self._known.when_over.pop(job.id)()
            if process.alive:
                self._checks.check_cancellation(held)
                self._checks.check_over(held)

    def _ask(self, held: Held, cancellation: asyncio.CancelledError) -> None:
        """A handler was asked to end."""
        if held.asked is not None or not held.process.alive:
            return
        held.asked = self._run.world.loop.time()
        held.why = str(cancellation.args[0]) if cancellation.args else ""
        if held.was_paused:
            return
        match held.why:
            case "stopped":
                # When it is known whether its process ends, and who else was asked at the same moment.
                self._run.world.loop.call_later(
                    MOMENT, self._checks.check_stopped, held, context=self._run.world.cluster.context
                )
            case "ending":
                self._checks.check_ending(held)
            case "overtime":
                limit = held.accepted.time_limit(self._known.options[held.job.type])
                if limit is None or held.asked - held.accepted.at < limit - MOMENT:
                    self._known.wrong(
                        held.accepted, "overtime: the handler of {} was told too early that its time is over"
                    )
            case "canceled" | "taken":
                if held.job.lock not in self._known.taken and (held.has_ended_job or held.fate not in OWN):
                    self._known.wrong(
                        held.accepted, f"interrupted: the handler of {{}} was told that its job was {held.why}"
                    )

    async def _act(self, held: Held) -> Any:
        job, random = held.job, self._random
        timeout = self._known.options[job.type]["timeout"]
        match held.fate:
            case "for ever":
                return await self._go_on(held)
            case "finish":
                return await self._finish_with_effect(held)
            case "stubborn":
                await self._ignore_cancellation(held)
            case "hang" | "nothing" if held.fate == "hang" or random.random() < 0.3:
                await self._run.calm_begins()
            case "long":
                await self._spend(random.uniform(1.0, 1.5) * timeout)
            case "update":
                await asyncio.sleep(random.uniform(0.0, 1.0))
                await job.progress(1, 2, "half")
                await job.update(_step(job))
            case "again":
                await job.resubmit(run_at=held.process.clock.wall_time() + random.choice([-1.0, 1.0]))
            case "together":
                end = self._known.together[job.id]
                await asyncio.sleep(max(0.0, end.at - self._run.world.loop.time()))
                if job.attempts == 1 and random.random() < 0.2:
                    raise ValueError("with others")
                return {"pad": "x" * end.size}
            case "release":
                released = await job.release()
                held.ended_job = self._run.world.loop.time()
                await asyncio.sleep(random.choice([0.0, timeout]))
                return released
            case _:
                await self._spend(random.choice([0.0, 0.0, 0.3, 2.0]))
        if random.random() < 0.2 and held.fate in ("hang", "stubborn", "long", "update"):
            raise ValueError("at last")
        return self._end(held)

    async def _spend(self, seconds: float) -> None:
        """Take time; none in calm, when a job that has failed often would wait for its next attempt for too long."""
        await asyncio.sleep(0.0 if self._run.is_calm else seconds)

    def _end(self, held: Held) -> Any:
        """Return or raise what the fate wants."""
        random = self._random
        match held.fate:
            case "raise":
                raise ValueError("for no reason")
            case "retry":
                raise Retry(after=random.choice([None, 0.0, 1.5]))
            case "snooze":
                raise Snooze(random.choice([0.0, 0.5, 2.0]))
            case "discard":
                raise Discard("of no use")
            case "base":
                raise random.choice([SystemExit, KeyboardInterrupt])("from inside of a handler")
            case "cancel itself":
                raise asyncio.CancelledError
            case "object":
                return object()
            case "nothing":
                return None
        return {"began": held.began, "pad": self._run.sizes.pad(int(held.began * 1000))}

    async def _go_on(self, held: Held) -> Any:
        """Run until the calm, or until somebody else is to have the slot; say so in the end."""
        random = self._random
        try:
            if random.random() < 0.3:
                await asyncio.sleep(random.uniform(0.0, 2.0))
                await held.job.progress(1)
                if random.random() < 0.3:
                    raise ValueError("for no reason")
            await self._run.calm_begins()
            self._checks.check_turns()
        except asyncio.CancelledError as cancellation:
            self._ask(held, cancellation)
            if random.random() < 0.5:
                await held.job.update(_step(held.job))
            raise
        return None

    async def _ignore_cancellation(self, held: Held) -> None:
        """Go on for a while when it is asked to end, or in the calm."""
        loop, grace = self._run.world.loop, self._known.options[held.job.type]["grace"]
        try:
            await self._run.calm_begins()
        except asyncio.CancelledError as cancellation:
            self._ask(held, cancellation)
        until = loop.time() + self._random.uniform(0.0, 3.0 * grace)
        while loop.time() < until:
            try:
                await asyncio.sleep(until - loop.time())
            except asyncio.CancelledError as cancellation:
                self._ask(held, cancellation)
        if self._random.random() < 0.5:
            await held.job.update(_step(held.job))

    async def _finish_with_effect(self, held: Held) -> Any:
        lock = held.job.lock

        def finish(tx: JobTransaction) -> Any:
            tx.kv.add(EFFECTS + lock, b"\x01")
            return {"with": "an effect"}

        await asyncio.sleep(self._random.choice([0.0, 0.0, 1.0]))
        self._run.effects.add(lock)
        await held.job.finish_with(finish)
        held.ended_job = self._run.world.loop.time()
        if self._random.random() < 0.5:
            await asyncio.sleep(self._random.choice([0.3, 1.0, self._known.options[held.job.type]["timeout"]]))
        if self._random.random() < 0.3:
            raise ValueError("when all is over")
        return "this is not the result"


def _step(job: RunningJob) -> dict[str, Any]:
    """Return data of a job that has come further; they do not begin as those of a call."""
    return {"step": 1, "call": job.data.get("call", 0), "pad": job.data.get("pad", "")}
