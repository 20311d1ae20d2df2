"""Scenes in which parts of a service crash: the others go on, and what has crashed is there again in a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import Context
from functools import partial
from typing import Any, ClassVar, Final
from unittest.mock import patch

from jobs_service import JobsService, RunningJob, SupervisorFailed
from jobs_service.actors import process_monitor
from jobs_service.testing import Process
from tests.simulation.client import Client
from tests.simulation.scenes.losing import Losses
from tests.simulation.scenes.stage import Scene
from tests.simulation.weather import crash

_RECOVERED: Final = 1.5
_TIMEOUT: Final = 2.0


class Breakdowns(Losses):
    """Have parts of a service crash, also while they are started again; then change a job, and lose another one."""

    name: ClassVar[str] = "breakdowns"

    async def play(self) -> None:
        await self.within(self._live, max_restarts=1000, type_idle_after=self.random.choice([0.5, 10.0]))

    async def _live(self, client: Client) -> None:
        random, latency = self.random, self.run.world.cluster.latency
        followed = (self.type, "followed")
        await client.jobs.set_type_timeout(self.type, _TIMEOUT)
        await client.jobs.set_type_timeout(followed, 600.0)
        job = await self.take(client, "j", followed)
        assert job is not None
        heard = self.heard(client, "j", followed)
        async with self.listeners(client, [(heard, 0.0)]):
            await self.all_know([heard], self.moment, "who has just subscribed knows what it waits for")
            for number in range(6):
                held = random.random() < 0.5
                if held:  # its type has a monitor that may crash
                    await self.take(client, f"l{number}")
                for _ in range(random.choice([1, 2, 3, 4])):
                    self._crash(client)
                    await asyncio.sleep(random.uniform(0.0, 3 * latency))
                    await asyncio.sleep(random.choice([0.0, 0.0, random.uniform(0.0, 0.01)]))
                await asyncio.sleep(_RECOVERED + 20 * latency)
                await client.update(job)
                await self.all_know([heard], self.moment, "who had subscribed before a crash knows what has changed")
                if not held:
                    await self.take(client, f"l{number}")
                await self.lost([f"l{number}"], _TIMEOUT + 1.0)
                await client.remove(self.type, f"l{number}", force=True)
        await self.clean(client, [followed])

    def _crash(self, client: Client) -> None:
        crash_one(self, client.process)


class Lanes(Scene):
    """Have the parts crash that run handlers: one that ran for long is started again after the shortest pause."""

    name: ClassVar[str] = "lanes"
    _pause: ClassVar[float] = 0.3
    _calm: ClassVar[float] = 1.0

    async def play(self) -> None:
        # A process that is listed has one more tree like that.
        await self.within(self._live, retry_backoff=self._pause, restart_period=self._calm, max_restarts=1000)

    def register(self, jobs: JobsService) -> None:
        @jobs.handler(self.type, timeout=20.0)
        async def handled(job: RunningJob) -> None:
            """Do nothing."""

    async def _live(self, client: Client) -> None:
        started = asyncio.Event()
        runner = asyncio.create_task(client.jobs.run(started=started.set))
        try:
            await started.wait()
            for _ in range(10):
                await asyncio.sleep(1.5 * self._calm)
                crash_one(self, client.process, of_runner=True)
                await asyncio.sleep(0.01)
                await self.until(
                    lambda: not [*_restarting(client.jobs.supervision())],
                    self._pause + self.moment,
                    "what has crashed after a calm time was started again",
                )
        finally:
            runner.cancel()
            await asyncio.gather(runner, return_exceptions=True)


class Intensity(Scene):
    """Have a part crash as often as it may within a period, again and again; then once more, and the service fails."""

    name: ClassVar[str] = "intensity"
    _part: ClassVar[str] = "type server"

    async def play(self) -> None:
        self._most, self._period = self.random.choice([0, 1, 3]), self.random.choice([10.0, 60.0])
        self._is_due = False
        process = self.begin(self._live, max_restarts=self._most, restart_period=self._period)
        await self.end(process, fails=SupervisorFailed)
        if not self._is_due:
            self.complain(f"the service has failed after no more than {self._most} crashes in {self._period} s")

    async def _live(self, client: Client) -> None:
        for _ in range(2):
            for _ in range(self._most):
                self._expect(client, await self._crashed(client))
            await asyncio.sleep(self._period + 0.5)
        for _ in range(self._most):
            await self._crashed(client)
        self._is_due = True
        await self._crashed(client)

    async def _crashed(self, client: Client) -> int:
        before = self._restarts(client)
        crash_one(self, client.process, named=self._part)
        await asyncio.sleep(self.moment)
        return before

    def _expect(self, client: Client, before: int) -> None:
        if self._restarts(client) != before + 1:
            self.complain(f"a crash was the reason for {self._restarts(client) - before} restarts")

    def _restarts(self, client: Client) -> int:
        children: list[dict[str, Any]] = client.jobs.supervision()["children"]
        return sum(int(child["restarts"]) for child in children if child["name"] == self._part)


class Graves(Scene):
    """Kill a process that has many jobs, and some of those who find it dead: its jobs are pending again at once.

    It is for embedded stores, which know who has died.
    """

    name: ClassVar[str] = "graves"
    embedded: ClassVar[bool] = True
    _found: ClassVar[float] = 6.0

    async def play(self) -> None:
        with patch.object(process_monitor, "_PAGE", self.random.choice([2, 3, 250])):
            for _ in range(3):
                await self._kill_one(heirs=self.random.choice([0.0, 0.8, 0.8]), process_check_period=1.0)

    async def _kill_one(self, *, heirs: float, process_check_period: float) -> None:
        self._taken, self._over = asyncio.Event(), asyncio.Event()
        holder = self.begin(self._hold, process_check_period=process_check_period)
        await self._taken.wait()
        others = [self.begin(self._watch, process_check_period=process_check_period) for _ in range(4)]
        await asyncio.sleep(process_check_period)
        self.run.quiet.disturb("kill")
        holder.kill()
        await self.end(holder)
        with self.weather(heir=heirs):
            await asyncio.sleep(2 * process_check_period)
        # Whoever is left, or comes now, does the rest.
        others.append(self.begin(self._clean_up, process_check_period=process_check_period))
        for process in others[::-1]:
            await self.end(process)

    async def _hold(self, client: Client) -> None:
        await client.jobs.set_type_timeout(self.type, 600.0)
        await client.add_many(
            self.type, [f"j{number}" for number in range(self.random.choice([1, 8]))], if_exists="resubmit"
        )
        for _ in range(8):
            await client.accept(self.type, timeout=0)
        self._taken.set()
        await asyncio.sleep(60.0)

    async def _watch(self, client: Client) -> None:
        await self._over.wait()

    async def _clean_up(self, client: Client) -> None:
        ids = [id for type, id in self.run.history.model.jobs if type == self.type]
        await self.until(
            lambda: not [id for id in ids if self.state(id) == "running"],
            self._found,
            "the jobs of a process that has died were pending again",
        )
        await self.clean(client)
        self._over.set()


def crash_one(scene: Scene, process: Process, *, of_runner: bool = False, named: str = "") -> None:
    """Have one part of a process crash, as the fault does it."""
    run = scene.run
    with scene.weather(crash=1.0):
        hard = run.world.choices.fault("crash")
    if hard is not None:
        # As by a stranger's hand, not by the process itself.
        work = partial(crash, run, process, hard, of_runner=of_runner, named=named)
        run.world.loop.call_soon(work, context=Context())


def _restarting(tree: dict[str, Any]) -> Iterator[str]:
    """Yield the parts of a process that do not run."""
    if tree.get("state", "running") != "running":
        yield tree["name"]
    for child in tree.get("children", []):
        yield from _restarting(child)
