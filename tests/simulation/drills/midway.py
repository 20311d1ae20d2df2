"""A service that is left while all kinds of calls are under way, at exact moments: what was begun ends, no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from jobs_service import (
    JobCanceled,
    JobNotFound,
    JobsService,
    JobState,
    JobTransaction,
    NewJob,
    RunningJob,
    ServiceClosed,
)
from jobs_service.errors import TransactionConflict
from tests.simulation.checks import held_after
from tests.simulation.drills.drill import LONG, Drill, all_ended
from tests.simulation.drills.ground import SOON, Ground

_PENDING: Final = ("p1", "p2", "p3")
_HELD: Final = ("h1", "h2", "h3")
_NONE: Final = "none of them"
"""A type without jobs."""

_CHANGES: Final = (
    "add",
    "add_many",
    "remove",
    "resubmit",
    "finish",
    "update",
    "release",
    "transact",
    "pause",
    "timeout",
)
_SHARED: Final = ("add", "remove", "resubmit", "finish", "update", "release", "take")
"""Those that share transactions, which a service waits for, also where others have opened its store."""

_READS: Final = ("get", "list", "counts", "types", "count")
_WAITS: Final = ("accept", "accept some", "stop", "subscribe", "slow", "wait", "result")


async def leave_in_the_middle(drill: Drill) -> None:
    """Have calls of all kinds stand at one moment of their way, leave the service, and let them go on."""
    ground = Ground(drill)
    leaving = _Leaving(ground, ground.service(supervise=drill.random.random() < 0.6))
    async with ground.service(supervise=False) as other:
        await leaving.play(other)


class _Leaving:
    """A service that is left.

    Args:
        ground: where.
        jobs: the service.
    """

    def __init__(self, ground: Ground, jobs: JobsService) -> None:
        self._ground = ground
        self._random = ground.random
        self._jobs = jobs
        self._held: dict[str, RunningJob] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._gone: set[str] = set()
        self._moment = ""

    async def play(self, other: JobsService) -> None:
        """Prepare, ask, leave, and look with another service what has come of it."""
        ground, random, kind = self._ground, self._random, self._ground.type
        for type in (kind, _NONE, "paused"):
            await other.set_type_timeout(type, LONG)
        await other.add_many(kind, [NewJob(id) for id in (*_HELD, *_PENDING)])
        await self._jobs.__aenter__()
        self._held = {str(job.id): job for job in await self._jobs.accept_many(kind, 3, timeout=0)}
        block = random.choice([None, "before", "in it"])
        transaction = ground.store.begin()
        within = self._jobs.within(transaction)
        if block == "in it":
            within.__enter__().add(kind, "of block")
        for name in random.sample(_WAITS, random.randint(0, len(_WAITS))):
            if self._jobs.supervision() or name in ("accept", "accept some", "stop"):
                self._begin(name)
        await asyncio.sleep(random.choice([0.0, SOON]))
        self._moment = ground.doors.shut = random.choice(["begin", "commit", "answer"])
        for name in random.sample((*_CHANGES, *_READS), random.randint(0, 6)):
            self._begin(name)
        takes = random.choice([[], ["take"], ["take"], ["take", "take in one"]])
        for name in takes:
            self._begin(name)
        await asyncio.sleep(0.01)
        self._gone = {name for name in self._tasks if random.random() < (0.6 if name in takes else 0.2)}
        for name in sorted(self._gone):
            self._tasks[name].cancel()
        await asyncio.sleep(random.choice([0.0, 0.01]))
        if await self._leave():
            await self._compare(other)
            self._end_block(within, block)
            if block == "in it":
                with contextlib.suppress(TransactionConflict):
                    transaction.commit()
                    await self._is(other, "of block", JobState.PENDING, "a block that had begun before")
        transaction.end()

    def _begin(self, name: str) -> None:
        self._tasks[name] = asyncio.create_task(self._ask(name), name=name)

    async def _ask(self, name: str) -> Any:
        jobs, kind = self._jobs, self._ground.type
        ways: dict[str, Callable[[], Awaitable[Any]]] = {
            "add": lambda: jobs.add(kind, "add"),
            "add_many": lambda: jobs.add_many(kind, [NewJob("add_many")]),
            "remove": lambda: jobs.remove(kind, "p3"),
            "resubmit": lambda: jobs.resubmit(kind, "p2", priority=7),
            "finish": lambda: self._held["h1"].finish(),
            "update": lambda: self._held["h2"].update({"new": 1}),
            "release": lambda: self._held["h3"].release(),
            "transact": lambda: jobs.transact(self._add),
            "pause": lambda: jobs.pause("paused"),
            "timeout": lambda: jobs.set_type_timeout("made", 5.0),
            "get": lambda: jobs.get(kind, "p2"),
            "list": lambda: _all_of(jobs, kind),
            "counts": jobs.counts,
            "types": jobs.types,
            "count": lambda: jobs.pending_count(kind),
            "take": lambda: jobs.accept(kind, timeout=self._random.choice([0, None]), max_priority=0),
            "take in one": lambda: jobs.transact(_take_p1(kind)),
            "accept": lambda: jobs.accept(_NONE, timeout=self._random.choice([None, 50.0])),
            "accept some": lambda: jobs.accept_many(_NONE, 3, spread=2),
            "stop": lambda: jobs.stop_and_remove(kind, "h2", timeout=50.0),
            "subscribe": lambda: self._follow(0.0),
            "slow": lambda: self._follow(60.0),
            "wait": lambda: jobs.wait(kind, "h2", "removed"),
            "result": lambda: jobs.result(kind, "h2"),
        }
        return await ways[name]()

    async def _add(self, tx: JobTransaction) -> None:
        await tx.add(self._ground.type, "transact", if_exists="ignore")

    async def _follow(self, rest: float) -> None:
        """Follow a job; who is slow comes back when the service was left."""
        async with self._jobs.subscribe(self._ground.type, "h2") as events:
            async for _ in events:
                await asyncio.sleep(rest)

    async def _leave(self) -> bool:
        """Leave the service, and return whether that has ended as it should."""
        ground, random, jobs = self._ground, self._random, self._jobs
        leaving = asyncio.create_task(jobs.__aexit__(None, None, None), name="leaves")
        await asyncio.sleep(0.01)
        canceled = random.choice([0, 0, 1, 2]) if not leaving.done() else 0
        for _ in range(canceled):
            leaving.cancel()
            await asyncio.sleep(random.choice([0.0, 0.01]))
        under_way = [name for name, task in self._tasks.items() if name in _SHARED and not task.done()]
        if leaving.done() and under_way:
            ground.complain(f"a service was left, and {under_way} are under way")
        if not leaving.done():
            await self._refuses("being left")
        ground.doors.open()
        late = await all_ended([leaving], SOON)
        if late or leaving.cancelled() != (canceled > 0) or not (leaving.cancelled() or leaving.exception() is None):
            ground.complain(f"a service was left ({self._moment}; canceled {canceled} times): {leaving!r}")
            return False
        await asyncio.sleep(0.01)  # who was woken last learns in its next turn that the service is closed
        for what in held_after(jobs):
            ground.complain(f"a service was left, and holds {what}")
        if watches := ground.store.metrics()["watches"]:
            ground.complain(f"a service was left, and has {watches} watches")
        await self._refuses("not open")
        quick = [task for name, task in self._tasks.items() if name != "slow"]
        for task in await all_ended(quick, 0.01):
            ground.complain(f"a service was left, and {task.get_name()} waits for it")
        if "slow" in self._tasks:
            await all_ended([self._tasks["slow"]], 61.0)
        return True

    async def _refuses(self, why: str) -> None:
        """Whatever is asked now is refused."""
        jobs, kind = self._jobs, self._ground.type
        ways: list[Callable[[], Awaitable[Any]]] = [
            lambda: jobs.add(kind, "late"),
            lambda: jobs.get(kind, "p2"),
            lambda: jobs.accept(kind, timeout=None),
            lambda: jobs.transact(self._add),
            self._held["h2"].update,
            lambda: jobs.counts(kind),
        ]
        for way in self._random.sample(ways, 2):
            try:
                answer = await way()
            except ServiceClosed as error:
                if why not in str(error):
                    self._ground.complain(f"a service is {why}, and says {error}")
            else:
                self._ground.complain(f"a service is {why}, and answers {answer!r}")

    # What came of it

    async def _compare(self, other: JobsService) -> None:
        """Those who had begun are answered, those who waited are told; what was answered is so."""
        for name, task in self._tasks.items():
            error = None if task.cancelled() else task.exception()
            if name in self._gone:
                if not task.cancelled() and isinstance(error, Exception) and not isinstance(error, ServiceClosed):
                    self._ground.complain(f"{name} was canceled while a service was left, and raised {error!r}")
            elif task.cancelled():
                self._ground.complain(f"a service was left, and {name} was canceled ({self._moment})")
            elif name in _WAITS and not isinstance(error, ServiceClosed):
                self._ground.complain(f"a service was left, and {name}, which waited, was told {error!r}")
            elif name == "update" and "stop" in self._tasks and isinstance(error, JobCanceled):
                pass  # that was asked for before
            elif name == "take" and isinstance(error, ServiceClosed) and {"remove", "resubmit"} & self._tasks.keys():
                pass  # there was nothing left to take
            elif name in (*_CHANGES, "get", "take", "take in one") and error is not None:
                self._ground.complain(f"a service was left, and {name}, which had begun, was told {error!r}")
            elif error is not None and not isinstance(error, ServiceClosed):
                self._ground.complain(f"a service was left, and {name} was told {error!r}")
        kind, removed = self._ground.type, JobState.REMOVED
        wanted = {
            "add": JobState.PENDING,
            "add_many": JobState.PENDING,
            "remove": removed,
            "finish": JobState.FINISHED,
            "update": JobState.RUNNING,
            "release": JobState.PENDING,
            "transact": JobState.PENDING,
        }
        ids = {"remove": "p3", "finish": "h1", "update": "h2", "release": "h3"}
        takes = [each for each in self._tasks if each.startswith("take")]
        taken = {str(job.id) for name in takes if (job := self._got(name)) is not None}
        for name, state in wanted.items():
            if name == "update" and "stop" in self._tasks:
                continue
            if name in self._tasks and name not in self._gone and ids.get(name, name) not in taken:
                await self._is(other, ids.get(name, name), state, name)
        running = {str(job.id) async for job in other.list(kind, state=JobState.RUNNING)}
        if not taken <= running or not running <= {*taken, *_HELD}:
            self._ground.complain(f"a service was left: {taken} were taken ({self._gone} went), and {running} run")
        if "pause" in self._tasks.keys() - self._gone and not await other.paused("paused"):
            self._ground.complain("a service was left that was pausing a type, and it is not paused")
        if "timeout" in self._tasks.keys() - self._gone and "made" not in await other.types():
            self._ground.complain("a service was left that was making a type, and it is not there")

    def _got(self, name: str) -> RunningJob | None:
        task = self._tasks[name]
        if task.cancelled() or task.exception() is not None:
            return None
        job: RunningJob | None = task.result()
        return job

    async def _is(self, other: JobsService, id: str, state: JobState, what: str) -> None:
        try:
            found = (await other.get(self._ground.type, id)).state
        except JobNotFound:
            found = JobState.REMOVED
        if found is not state:
            self._ground.complain(f"a service was left; {what} was answered, and {id!r} is {found}, not {state}")

    def _end_block(self, within: Any, block: str | None) -> None:
        """A block that had begun ends as ever; one that begins now is refused."""
        if block == "in it":
            within.__exit__(None, None, None)
        elif block == "before":
            try:
                with within:
                    self._ground.complain("a service was left, and a block of it was entered")
            except ServiceClosed:
                pass


async def _all_of(jobs: JobsService, kind: Any) -> list[Any]:
    return [each async for each in jobs.list(kind, page_size=2)]


def _take_p1(kind: Any) -> Callable[[JobTransaction], Awaitable[RunningJob | None]]:
    async def take(tx: JobTransaction) -> RunningJob | None:
        return await tx.accept(kind, max_priority=0)

    return take
