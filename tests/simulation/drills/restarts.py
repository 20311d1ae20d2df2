"""Parts of a service that crash: those behind them are started again, what they had begun to watch over is watched."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from jobs_service import JobEvent, JobsService, JobState, JobType, RunningJob, ServiceClosed, SupervisorFailed
from tests.simulation.drills.drill import LONG, Drill, all_ended
from tests.simulation.drills.ground import SOON, Ground
from tests.simulation.weather import tree_tasks

_PARTS: Final = ("keyspace", "monitors", "notifiers", "type server")
"""The parts of a service's tree, in their order."""

_PLENTY: Final = 50
_DRILL: Final = "drill"


async def restart_parts(drill: Drill) -> None:
    """Have parts of a service crash, as often as they may and once more; it goes on, or fails and says so."""
    random = drill.random
    most, period = random.choice([0, 1, 2, 3, _PLENTY, _PLENTY]), random.choice([5.0, 9.0])
    ground = Ground(drill, max_restarts=most, restart_period=period, type_idle_after=500.0, type_check_period=500.0)
    restarts = _Restarts(ground, most, period)
    body = asyncio.create_task(restarts.play(), name=f"{drill.type} crashes")
    if await all_ended([body], 200.0):
        ground.complain("a service whose parts have crashed is not left")
        return
    error = None if body.cancelled() else body.exception()
    if body.cancelled() or (error is not None) != restarts.fails:
        ground.complain(f"parts of a service were to crash ({most} in {period} s, {restarts.times}): {body!r}")
    elif error is not None and not isinstance(error, SupervisorFailed):
        raise error
    elif error is not None and error.__cause__ is None:
        ground.complain(f"a service has failed, and does not say why: {error!r}")
    await all_ended(restarts.tasks, SOON)
    for each in restarts.tasks:
        told = None if each.cancelled() else each.exception()
        if not isinstance(told, ServiceClosed | SupervisorFailed):
            ground.complain(f"a service was left ({restarts.fails=}), and who followed a job was told {each!r}")


class _Restarts:
    """A service whose parts crash.

    Args:
        ground: where it is.
        most, period: restarts that it may have, within so many seconds.

    Attributes:
        fails: whether it has crashed too often.
        tasks: of those who follow its jobs.
        times: when parts of it have crashed.
    """

    def __init__(self, ground: Ground, most: int, period: float) -> None:
        self.fails = False
        self.tasks: list[asyncio.Task[None]] = []
        self.times: list[float] = []
        self._ground = ground
        self._random = ground.random
        self._most = most
        self._period = period
        self._restarts = dict.fromkeys(_PARTS, 0)
        self._since: dict[str, float] = {}
        self._told: list[JobEvent] = []
        self._awake: list[JobType] = []
        self._steps = 0
        self._jobs: JobsService

    async def play(self) -> None:
        """Open it, and have parts of it crash."""
        ground, random = self._ground, self._random
        async with ground.service() as self._jobs:
            began = ground.time()
            self._since = dict.fromkeys(_PARTS, began)
            job = await self._begin()
            await asyncio.sleep(SOON)
            for _ in range(random.randint(1, 4)):
                self._compare()
                await random.choice([self._show, self._become_due, self._be_lost])(job)
                await asyncio.sleep(random.choice([0.0, 0.0, self._period]))
                if not self._may_crash():
                    continue
                await self._crash()
                await asyncio.sleep(SOON)
                if self.fails:
                    await asyncio.sleep(SOON)
                    ground.complain(f"a service goes on whose parts have crashed too often, at {self.times}")
                    return
            self._compare()
            await self._show(job)

    async def _begin(self) -> RunningJob:
        """Have a job run that somebody follows."""
        kind = self._ground.type
        await self._jobs.set_type_timeout(kind, LONG)
        await self._jobs.add(kind, "a")
        job = await self._jobs.accept(kind, timeout=0)
        assert job is not None
        self._awake = [kind]
        self.tasks.append(asyncio.create_task(self._follow(), name="follows"))
        return job

    async def _follow(self) -> None:
        async for event in self._jobs.subscribe(self._ground.type, "a"):
            self._told.append(event)

    def _may_crash(self) -> bool:
        """Whether another crash has an outcome that is known: not at the very edge of the period."""
        now = self._ground.time()
        edge = any(abs(now - self._period - each) < 1.0 for each in self.times)
        return not edge and (self._room() > 0 or self._random.random() < 0.4)

    def _room(self) -> int:
        now = self._ground.time()
        return self._most - sum(now - self._period < each for each in self.times)

    async def _crash(self) -> None:
        """Have a part crash."""
        random = self._random
        tasks = [*tree_tasks(self._jobs)]
        if self._most < _PLENTY:  # those whose end is counted once, whoever hears of it first
            tasks = [each for each in tasks if each[1].get_name() not in ("monitors", "notifiers")]
        actor, task = random.choice(tasks)
        name = task.get_name()
        self.fails = self._room() < 1
        self._ground.drill.run.crashes.crashed(self._ground.drill.client.process)
        self.times.append(self._ground.time())
        if actor is not None and random.random() < 0.5:
            actor.cast("a message that nobody knows")
        else:
            task.cancel()
        self._steps += 1
        first = _PARTS.index(name) if name in _PARTS else len(_PARTS) - 1
        for part in _PARTS[first:]:
            self._restarts[part] += 1
            self._since[part] = self._ground.time()
        if name in ("monitors", "notifiers"):  # of whose end the type server may have heard before
            self._restarts["type server"] = -_PLENTY

    # What must be so

    def _compare(self) -> None:
        """Compare the tree with what must be there."""
        root = self._jobs.supervision()
        parts = root["children"]
        if (root["kind"], root["state"], [each["name"] for each in parts]) != ("supervisor", "running", [*_PARTS]):
            self._ground.complain(f"the tree of a service is {root}")
            return
        now = self._ground.time()
        for part in parts:
            name, known = part["name"], self._restarts[part["name"]]
            if part["state"] != "running" or (known >= 0 and part["restarts"] != known):
                self._ground.complain(f"{name} was started again {known} times, and is {part}")
            if not -0.001 <= now - self._since[name] - part["seconds"] <= 0.2:
                self._ground.complain(f"{name} was started {now - self._since[name]} s ago, and says {part['seconds']}")
        names = sorted(self._jobs._context.keyspace.of(each).name for each in self._awake)
        monitors, notifiers = ([each["name"] for each in part["children"]] for part in parts[1:3])
        if sorted(monitors) != names or notifiers != [self._jobs._context.keyspace.of(self._ground.type).name]:
            self._ground.complain(f"{names} are awake, watched are {monitors}, followed are {notifiers}")

    async def _show(self, job: RunningJob) -> None:
        """Whoever follows a job is told of what comes, and of nothing twice."""
        self._steps += 1
        await job.progress(self._steps, None, _DRILL)
        await asyncio.sleep(SOON)
        done = [0 if each.progress is None else each.progress.done for each in self._told]
        if done[-1:] != [self._steps] or done != sorted({*done}):
            self._ground.complain(f"a job has come to {self._steps}, and told was {done}")

    async def _new_type(self, seconds: float) -> Any:
        self._steps += 1
        kind = (self._ground.type, self._steps)
        await self._jobs.set_type_timeout(kind, seconds)
        self._awake.append(kind)
        return kind

    async def _become_due(self, _: RunningJob) -> None:
        """A job of a type that nobody has watched over becomes ready when it is due."""
        kind = await self._new_type(LONG)
        await self._jobs.add(kind, "later", run_at=self._ground.wall_time() + 1.0)
        await asyncio.sleep(1.0 + SOON)
        counts = (await self._jobs.counts(kind))[kind]
        if (counts.ready, counts.scheduled) != (1, 0):
            self._ground.complain(f"a job has come due, and there are {counts}")

    async def _be_lost(self, _: RunningJob) -> None:
        """A job of such a type is lost in time."""
        kind, seconds = await self._new_type(LONG), 1.0
        await self._jobs.add(kind, "silent")
        await self._jobs.accept(kind, timeout=0)
        await asyncio.sleep(self._random.choice([0.0, SOON]))
        await self._jobs.set_type_timeout(kind, seconds)
        await asyncio.sleep(1.5 * seconds + 1.0)
        if (found := await self._jobs.get(kind, "silent")).state is not JobState.PENDING:
            self._ground.complain(f"the worker of a job was silent for more than {seconds} s, and it is {found}")
