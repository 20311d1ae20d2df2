"""Those who bring handlers into situations that come rarely by chance, in runs that are about handlers only.

What must be so then, `runner_checks` knows. Each situation is a few calls with a pause between them that is drawn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any, ClassVar, Final, TypeAlias

from jobs_service import JobNotFound, JobType
from jobs_service.testing import Choices
from tests.simulation.client import Client
from tests.simulation.focus import ENDS_TIME_OUT, LANE_CRASHES
from tests.simulation.weather import tree_tasks
from tests.simulation.workloads.base import Workload
from tests.simulation.workloads.handled import MOMENT
from tests.simulation.workloads.runner_state import CONTINUOUS, ONE_SHOT, Together
from tests.simulation.workloads.runners import YOUNG, Handlers

_PATIENCE: Final = 2.0
"""Seconds for which somebody waits for handlers to begin."""
_REQUESTS: Final = 6
_TURNS: Final = 12
"""Turns of the loop that a pause takes at most where requests take no time."""
_SITUATIONS: Final = 3
"""How many kinds of them one run has, each of them often."""
_MANY: Final = 12
"""How many handlers end at the same moment."""
_LARGE: Final = 2_000
"""Bytes of a transaction's share for each of these from which on nothing is too much for it."""
_AFTER: Final = 3.0
"""Seconds after which what was done must have had its effect."""


Situation: TypeAlias = "Callable[[Shift], Awaitable[None]]"


class Foremen(Workload):
    """Bring handlers into situations that come rarely by chance."""

    name = "foremen"
    weight: ClassVar[int] = 24

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._numbers = count()
        self._situations = _some_situations(run.world.choices)

    async def step(self, client: Client) -> None:
        handlers = next(each for each in self.run.workloads if isinstance(each, Handlers))
        await Shift(handlers, client, self.random, self._situations, self._numbers).step()


class Shift:
    """What one foreman does.

    Args:
        handlers: the workload whose handlers run the jobs.
        client: the caller.
        random: its draws.
        situations: one of which is brought about.
        numbers: of the jobs.
    """

    def __init__(
        self,
        handlers: Handlers,
        client: Client,
        random: Random,
        situations: Sequence[Situation],
        numbers: Iterator[int],
    ) -> None:
        self._run = handlers.run
        self._handlers = handlers
        self._client = client
        self._random = random
        self._situations = situations
        self._numbers = numbers
        self._left: list[tuple[JobType, Any]] = []

    async def step(self) -> None:
        """Bring about one situation, and cancel the jobs that it has left: they would keep all slots."""
        situation = self._random.choice(self._situations)
        with contextlib.suppress(JobNotFound, TimeoutError):
            await situation(self)
        for type, id in self._left:
            with contextlib.suppress(JobNotFound):
                await self._client.remove(type, id)

    async def _leave_amid_accepts(self) -> None:
        """A process is asked to stop while it accepts what has just come."""
        for _ in range(self._random.randint(1, 3)):
            # Nobody cancels them afterwards.
            await self._enqueue(ONE_SHOT, together=Together(self._run.world.loop.time() + _PATIENCE, 0))
        await self._pause()
        self._run.quiet.disturb("stop")
        self._client.process.request_stop()

    async def _cancel_two(self) -> None:
        """Two jobs that run are canceled one shortly after the other: the second while the first is looked at."""
        first, second = [await self._enqueue(ONE_SHOT) for _ in range(2)]
        await self._begun(first, second)
        await asyncio.sleep(self._random.choice([0.0, 3 * MOMENT]))
        await self._client.remove(ONE_SHOT, first)
        await self._pause(self._random.choice([0.0, MOMENT]))
        await self._client.remove(ONE_SHOT, second)

    async def _cancel_beside(self) -> None:
        """A job that has just begun is canceled while the runner looks at another one that was."""
        first = await self._enqueue(ONE_SHOT)
        await self._begun(first)
        await asyncio.sleep(3 * MOMENT)
        await self._client.remove(ONE_SHOT, first)
        second = await self._enqueue(ONE_SHOT)
        await self._begun(second)
        await self._pause()
        await self._client.remove(ONE_SHOT, second)

    async def _reduce_slots(self) -> None:
        """A handler that has many slots, and jobs in all of them, is given fewer."""
        type, many = self._random.choice([ONE_SHOT, ONE_SHOT, CONTINUOUS]), self._random.choice([2, 3, 5])
        self._handlers.give_slots(self._client, type, many)
        ids = [await self._enqueue(type) for _ in range(many)]
        with self._lasting():
            with contextlib.suppress(TimeoutError):
                await self._begun(*ids)
            await asyncio.sleep(2 * MOMENT)
            self._handlers.give_slots(self._client, type, self._random.randint(1, many - 1))
            await asyncio.sleep(_AFTER + 2 * _REQUESTS * self._run.world.cluster.latency)
            self._handlers.checks.watch()

    async def _end_together(self) -> None:
        """Many handlers end at the same moment: their ends are more than one transaction holds, where that is little.

        In some runs those who write them just then are told that their time is up, and do not know what has happened.
        """
        most = self._run.world.cluster.limits.transaction // _MANY
        size = most if most < _LARGE and self._run.sizes.limits is None else 0
        until = self._run.world.loop.time() + _PATIENCE
        if self._random.random() < 0.8:
            self._handlers.give_slots(self._client, ONE_SHOT, _MANY)
        for _ in range(self._random.choice([3, _MANY, _MANY])):
            await self._enqueue(ONE_SHOT, together=Together(until, self._random.choice([0, size, size])))
        with self._lasting():
            await asyncio.sleep(max(0.0, until - self._run.world.loop.time() - self._random.uniform(0.0, MOMENT)))
            await self._have_commits_time_out()
            await asyncio.sleep(_AFTER)
            self._handlers.checks.watch()

    async def _have_commits_time_out(self) -> None:
        choices = self._run.world.choices
        if choices.fault(ENDS_TIME_OUT) is not None and not self._run.is_calm:
            choices.rates["commit_timed_out"] = 0.7
            await asyncio.sleep(2 * MOMENT)
            choices.rates.pop("commit_timed_out", None)

    async def _queue_up_behind(self) -> None:
        """More continuous jobs than there are slots: the others come after those that run, or before them."""
        known = self._handlers.known
        many = known.slots_of(self._client.process, CONTINUOUS) * (len(known.active) or 1)
        for _ in range(many):
            await self._enqueue(CONTINUOUS)
        await asyncio.sleep(self._random.choice([0.0, 0.5]))
        for _ in range(self._random.randint(1, 2)):
            await self._enqueue(CONTINUOUS, priority=self._random.choice([1, 1, 0, -1]))
        with self._lasting():
            await asyncio.sleep(_AFTER)
            self._handlers.checks.watch()

    async def _quicken(self) -> None:
        """A type's timeout becomes much longer, and some time later much shorter, while jobs run."""
        type = self._random.choice([ONE_SHOT, CONTINUOUS])
        await self._enqueue(type)
        await self._handlers.set_timeout(self._client, type, 30.0)
        await asyncio.sleep(self._random.uniform(0.5, 4.0))
        await self._handlers.set_timeout(self._client, type, self._random.choice([2.0, 3.0]))
        with self._lasting():
            await asyncio.sleep(2 * _AFTER)

    async def _count(self) -> None:
        """Somebody looks at the numbers of a type some of whose jobs wait for their time."""
        type = self._random.choice([ONE_SHOT, CONTINUOUS])
        if self._random.random() < 0.5:
            await self._enqueue(type, run_at=self._client.process.clock.wall_time() + _AFTER)
        for _ in range(3):
            await self._handlers.count(self._client)
            await asyncio.sleep(self._random.uniform(0.0, 0.5))

    async def _crash_amid_accepts(self) -> None:
        """A worker pool crashes while it accepts."""
        await self._enqueue(ONE_SHOT)
        await self._pause()
        self._crash("fill")

    async def _crash_as_one_ends(self) -> None:
        """A worker pool that waits for its place crashes as a handler that has one ends."""
        id = await self._enqueue(ONE_SHOT)
        await self._enqueue(CONTINUOUS)
        await self._begun(id)
        self._handlers.known.when_over[id] = lambda: self._crash("fill")
        await self._client.remove(ONE_SHOT, id)

    def _crash(self, name: str) -> None:
        """Have linked tasks of a name die in a process, if the weather is such that something may."""
        if self._client.process.alive and self._run.world.choices.fault(LANE_CRASHES) is not None:
            self._run.quiet.disturb("crash")
            self._run.crashes.crashed(self._client.process)
            for _, task in tree_tasks(self._client.jobs):
                if task.get_name().endswith(f"/{name}"):
                    self._run.world.loop.call_soon(task.cancel, context=self._client.process.context)

    # What several of them need

    async def _enqueue(self, type: JobType, together: Together | None = None, **options: Any) -> Any:
        """Enqueue a job whose handler does not end by itself before the calm, or when others do, and return its id."""
        id = f"{YOUNG}of a foreman {next(self._numbers)}"
        known = self._handlers.known
        known.begun[id] = asyncio.Event()
        if together is not None:
            known.together[id] = together
        elif type == ONE_SHOT:
            options["max_attempts"] = self._random.choice([None, 1, 2])
        self._left.append((type, id))
        await self._client.enqueue(self._client.jobs.handlers[type], self._handlers.order, id=id, **options)
        return id

    async def _begun(self, *ids: Any) -> None:
        """Wait until the handlers of jobs have begun, but not for long."""
        async with asyncio.timeout(_PATIENCE):
            for id in ids:
                await self._handlers.known.begun[id].wait()

    async def _pause(self, more: float = 0.0) -> None:
        """Let some time pass: as much as a few requests take, and up to so many seconds more."""
        for _ in range(self._random.randint(0, _TURNS)):
            await asyncio.sleep(0)
        await asyncio.sleep(self._random.uniform(0.0, _REQUESTS * self._run.world.cluster.latency + more))

    @contextmanager
    def _lasting(self) -> Iterator[None]:
        """Have the storm wait for the end of what is done meanwhile."""
        self._run.lasting += 1
        try:
            yield
        finally:
            self._run.lasting -= 1


_USUAL: Final[Sequence[Situation]] = (
    Shift._leave_amid_accepts,
    Shift._cancel_two,
    Shift._cancel_beside,
    Shift._reduce_slots,
    Shift._end_together,
    Shift._end_together,
    Shift._queue_up_behind,
    Shift._quicken,
    Shift._count,
)
"""What may be brought about in any run."""

_CRASHES: Final[Sequence[Situation]] = (Shift._crash_amid_accepts, Shift._crash_as_one_ends)
"""What may be brought about where worker pools crash."""


def _some_situations(choices: Choices) -> list[Situation]:
    """Draw what a run brings about, again and again."""
    random = choices.stream("situations")
    if LANE_CRASHES in choices.rates:
        return [*_CRASHES, random.choice(_USUAL)]
    if ENDS_TIME_OUT in choices.rates:
        return [Shift._end_together, random.choice(_USUAL)]
    return random.sample(_USUAL, _SITUATIONS)
