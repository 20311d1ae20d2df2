"""Parts of a runner that crash: what runs goes on and is kept alive, others notice nothing, and no slot is lost."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from jobs_service import JobsService, JobType, RunningJob
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.handling import check_uses, log_of, opened, running
from tests.simulation.weather import tree_tasks

_SECONDS: Final = 2.0
"""The timeout of the types: who is not kept alive is lost meanwhile."""
_LONGEST_PAUSE: Final = 10.0
_SLOTS: Final = 2
_GRACE: Final = 0.5


async def break_lanes(drill: Drill) -> None:
    """Have parts of a runner crash while jobs run, come and wait, and count then who runs."""
    lanes = _Lanes(drill)
    service = drill.client.process.service(supervise=False)
    lanes.register(service)
    async with opened(drill, service), running(drill, service, 2 * _GRACE, max_jobs=lanes.cap):
        await lanes.play(service)


class _Lanes:
    def __init__(self, drill: Drill) -> None:
        self._drill = drill
        self.cap = drill.random.choice([None, 2, 3])
        self._types: list[JobType] = [drill.type, (drill.type, "other")]
        self._ends: dict[tuple[JobType, str], asyncio.Event] = {}
        self._running: dict[JobType, set[str]] = {type: set() for type in self._types}
        self._asked: list[tuple[JobType, str]] = []
        self._number = 0
        self._back: dict[str, float] = {}
        self._log = log_of(drill)

    def register(self, service: JobsService) -> None:
        """Make functions the handlers of both types."""
        for type in self._types:

            @service.handler(type, slots=_SLOTS, timeout=_SECONDS, grace=_GRACE, backoff=600.0)
            async def hold(job: RunningJob) -> None:
                await self._hold(job)

    async def _hold(self, job: RunningJob) -> None:
        key, runs = (job.type, str(job.id)), self._running[job.type]
        if job.attempts != 1 or key[1] in runs:
            self._drill.complain(f"{key} runs as number {job.attempts}, and none of its runs has failed")
        runs.add(key[1])
        try:
            await self._ends[key].wait()
        except asyncio.CancelledError:
            self._asked.append(key)
            raise
        finally:
            runs.discard(key[1])

    async def play(self, service: JobsService) -> None:
        """Fill the slots, have a part crash at some moment, and see that all goes on."""
        drill, random = self._drill, self._drill.random
        # Below a cap some wait in line for a place.
        await self._add(random.randint(0, 3) if self.cap is None else 3, drill.type)
        await self._add(random.randint(0, 2), self._types[1])
        for _ in range(random.randint(1, 2)):
            await drill.settle()
            name, child = random.choice(
                [("fill", "lane"), ("fill", "lane"), ("canceled", "lane"), ("rotation", "lane"), ("", "heartbeat")]
            )
            how = random.choice(["idle", "comes", "ends", "ends"])
            if how == "ends":
                self._let_one_end()
            else:
                await self._add(how == "comes", drill.type)
                await asyncio.sleep(random.choice([0.0, random.uniform(0.0, 4 * drill.latency)]))
            for _ in range(random.randint(0, 5)):
                await asyncio.sleep(0)
            await self._break(service, name, child)
        await asyncio.sleep(1.5 * _SECONDS + 1.0)  # whoever is not kept alive is lost by then
        self._check(service)
        # All who wait get a slot in the end, one after the other.
        await self._add(_SLOTS, drill.type)
        while self._let_one_end():
            pass
        await drill.settle()
        self._check(service)
        await self._end(service)

    async def _add(self, count: int, type: JobType) -> None:
        for _ in range(count):
            self._number += 1
            self._ends[type, str(self._number)] = asyncio.Event()
            await self._drill.jobs.enqueue(type, id=str(self._number))

    def _let_one_end(self) -> bool:
        """Have one end that runs; return whether there was one."""
        runs = [(type, id) for type, ids in self._running.items() for id in sorted(ids)]
        keys = [key for key in runs if not self._ends[key].is_set()]
        if keys:
            self._ends[self._drill.random.choice(keys)].set()
        return bool(keys)

    async def _break(self, service: JobsService, name: str, child: str) -> None:
        """Have a part of the runner of one type crash, and wait until it is started again."""
        drill = self._drill
        wanted = f"{child} {drill.type!r}"
        said = len(self._restarts(wanted))
        drill.run.crashes.crashed(drill.client.process)
        for actor, task in tree_tasks(service, of_runner=True):
            if actor is None and task.get_name().endswith(f"/{name}") and wanted in task.get_name() and name:
                task.cancel()
            if not name and actor is not None and actor.name == wanted:
                task.cancel()
        await self._add(1, self._types[1])
        await asyncio.sleep(0.01)
        pauses = self._restarts(wanted)
        if not pauses:
            drill.complain(f"{wanted} has crashed in its {name!r}, and is not started again")
            return
        longest = 0.2 if child == "heartbeat" else _LONGEST_PAUSE
        first = min(drill.client.process.settings.retry_backoff, longest)
        # After a while in calm the pauses begin anew.
        lived, calm = drill.time() - self._back.get(wanted, -100.0), drill.client.process.settings.restart_period
        again = [first] if not said or lived > calm - 0.1 else []
        again += [min(2 * pauses[said - 1], longest)] if said and lived < calm + 0.1 else []
        self._back[wanted] = drill.time() + pauses[-1]
        if len(pauses) != said + 1 or pauses[-1] not in again:
            drill.complain(f"{wanted} has crashed in its {name!r}, and is said to be started again after {pauses}")
            return
        await drill.settle()
        busy = sum(map(len, self._running.values()))
        waiting = drill.pending(self._types[1])
        if waiting and (self.cap is None or busy < self.cap) and len(self._running[self._types[1]]) < _SLOTS:
            drill.complain(f"{wanted} has crashed, and {waiting} of another type wait: {self._running}")
        await asyncio.sleep(pauses[-1])

    def _restarts(self, child: str) -> list[float]:
        return [
            fields["pause"]
            for event, fields in self._log.events
            if event == "child_restarting" and fields.get("child") == child
        ]

    def _check(self, service: JobsService) -> None:
        """As many run as may, and nobody was asked to end."""
        drill = self._drill
        if self._asked:
            drill.complain(f"{self._asked} were asked to end, and only a part of their runner has crashed")
        busy = {type: len(ids) for type, ids in self._running.items()}
        waiting = {type: len(drill.pending(type)) for type in self._types}
        has_room = self.cap is None or sum(busy.values()) < self.cap
        if any(has_room and waiting[type] and busy[type] < _SLOTS for type in self._types):
            drill.complain(f"{waiting} wait, {busy} run, and {self.cap} may")
        if self.cap is not None and sum(busy.values()) > self.cap:
            drill.complain(f"{busy} run, and {self.cap} may")
        check_uses(drill, service, {type: (_SLOTS, busy[type]) for type in self._types})

    async def _end(self, service: JobsService) -> None:
        drill = self._drill
        for each in self._ends.values():
            each.set()
        await drill.settle()
        await drill.settle()
        left: dict[JobType, Any] = {type: [*drill.pending(type), *drill.running(type)] for type in self._types}
        if any(left.values()):
            drill.complain(f"all may run and end, and {left} have not")
        check_uses(drill, service, dict.fromkeys(self._types, (_SLOTS, 0)))
