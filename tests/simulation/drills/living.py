"""The lives of one service: opened, used, left or failed, and opened again; whoever asks is told what it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from jobs_service import (
    InvalidSettings,
    JobId,
    JobNotFound,
    JobsError,
    JobsService,
    RunningJob,
    ServiceClosed,
    StoreError,
    SupervisorFailed,
)
from jobs_service.sources import Sources
from jobs_service.store.memory import Faults, MemoryStore
from tests.simulation.checks import held_after
from tests.simulation.drills.drill import LONG, Drill, all_ended
from tests.simulation.weather import tree_tasks

_TYPE: Final = "lived"
_RUN: Final = "run"


class _Slow(Faults):
    """Transactions take a while.

    Args:
        drill: that draws how long.
    """

    def __init__(self, drill: Drill) -> None:
        self._drill = drill

    async def before_begin(self) -> None:
        await asyncio.sleep(self._drill.random.choice([0.0, 0.01, 0.05]))


class _Unwanted(Exception):
    """Ends a body."""


class _Lives:
    """A service, and what is known of it.

    Args:
        drill: that it is part of.

    Attributes:
        drill: see above.
        store: its own one.
        jobs: the service.
        there: jobs of which it was said that they were added.
        begun: how many jobs of its handler run.
    """

    def __init__(self, drill: Drill) -> None:
        process = drill.client.process
        self.drill = drill
        seed = f"{drill.run.world.choices.plan.seed}/{drill.type}"
        sources = Sources(seed, wall_time=process.clock.wall_time)
        self.store = MemoryStore(settings=process.settings, sources=sources)
        self.store.faults = _Slow(drill) if drill.random.random() < 0.5 else None
        settings = process.settings.model_copy(update={"max_restarts": 0})
        is_watched_over = drill.random.random() < 0.6
        self.jobs = JobsService(self.store, settings=settings, supervise=is_watched_over, sources=sources)
        self.is_watched_over = is_watched_over
        self.there: set[JobId] = set()
        self.begun = 0
        self._count = 0
        self.jobs.handler(_RUN, slots=2, timeout=60.0, grace=0.5)(self._run)

    async def _run(self, job: RunningJob) -> None:
        self.begun += 1
        try:
            await asyncio.sleep(self.drill.random.choice([0.1, 100.0]))
        finally:
            self.begun -= 1

    async def add(self) -> None:
        """Add a job, and note it when that was said."""
        self._count += 1
        id = str(self._count)
        await self.jobs.add(_TYPE, id)
        self.there.add(id)

    def complain(self, what: str) -> None:
        """Say what is wrong."""
        self.drill.complain(f"a service of its own {what}")

    def asked(self) -> Iterator[tuple[str, Callable[[], Awaitable[object]]]]:
        """Yield some of what can be asked of a service."""
        jobs = self.jobs
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "add": lambda: jobs.add(_TYPE, "x"),
            "add_many": lambda: jobs.add_many(_TYPE, []),
            "get": lambda: jobs.get(_TYPE, "x"),
            "accept": lambda: jobs.accept(_TYPE, timeout=0),
            "accept_many": lambda: jobs.accept_many(_TYPE, 3, timeout=None),
            "remove": lambda: jobs.remove(_TYPE, "x"),
            "stop_and_remove": lambda: jobs.stop_and_remove(_TYPE, "x", timeout=1.0),
            "counts": jobs.counts,
            "types": jobs.types,
            "page": lambda: jobs.page(_TYPE),
            "processes": jobs.processes,
            "pause": lambda: jobs.pause("none"),
            "set_type_timeout": lambda: jobs.set_type_timeout(_TYPE, 50.0),
            "set_redaction": lambda: jobs.set_redaction(_TYPE, []),
            "transact": lambda: jobs.transact(_nothing),
            "enqueue": lambda: jobs.enqueue(_RUN),
            "list": lambda: _all_of(jobs.list(_TYPE)),
        }
        if self.is_watched_over:
            ways |= {"wait": lambda: jobs.wait(_TYPE, "x", "finished"), "subscribe": lambda: _events_of(jobs)}
        for name in self.drill.random.sample([*ways], 5):
            yield name, ways[name]

    async def refuses(self, kind: type[JobsError], when: str) -> None:
        """Whatever is asked is refused with this error."""
        for name, ask in self.asked():
            try:
                async with asyncio.timeout(self.drill.moment):
                    answer = await ask()
            except kind:
                continue
            except Exception as error:
                self.complain(f"was asked to {name} {when}, and raised {error!r}")
            else:
                self.complain(f"was asked to {name} {when}, and answered {answer!r}")


async def _nothing(tx: Any) -> None:
    """Do nothing."""


async def _all_of(some: Any) -> list[Any]:
    return [each async for each in some]


async def _events_of(jobs: JobsService) -> None:
    async with jobs.subscribe(_TYPE, "x") as events:
        await anext(events)


async def live_and_live_again(drill: Drill) -> None:
    """Open a service again and again, and have each of its lives go and end in another way."""
    lives = _Lives(drill)
    is_made = False
    for number in range(drill.random.randint(2, 4)):
        if drill.random.random() < 0.5:
            await lives.refuses(ServiceClosed, "before it was opened" if number == 0 else "after it was left")
        if drill.random.random() < 0.3:
            await _is_not_opened(lives)
        how = drill.random.choice([_is_left, _is_left, _raises, _is_canceled, *([_fails] * 2 * lives.is_watched_over)])
        ways = drill.random.choice([[], [_runs_handlers]])
        await _live(lives, how, ways, is_made)
        is_made = True
        _look(lives, how.__name__)
    await drill.settle()
    if lives.begun:
        lives.complain(f"was left, and {lives.begun} of its handlers run")


async def _live(lives: _Lives, how: Any, ways: list[Any], is_made: bool) -> None:
    """Open it, use it, and end its life."""
    drill, jobs, tasks = lives.drill, lives.jobs, list[asyncio.Task[Any]]()

    async def body() -> None:
        async with jobs:
            if not is_made:
                await jobs.set_type_timeout(_TYPE, LONG)
            await _use(lives)
            for way in ways:
                await way(lives, tasks)
            tasks.extend(asyncio.create_task(lives.add(), name="adds") for _ in range(drill.random.choice([0, 3])))
            await drill.pass_turns()
            await how(lives, here)

    here = asyncio.create_task(body(), name="lives")
    try:
        ended, _ = await asyncio.wait([here], timeout=30.0)
        if not ended:
            lives.complain(f"was to be left ({how.__name__}), and that has not ended")
            return
        _compare_end(lives, here, how)
    finally:
        late = await all_ended([here, *tasks], drill.moment)
    for each in late:
        lives.complain(f"was left, and {each!r} waits for it")
    for each in tasks:
        error = None if each.cancelled() else each.exception()
        if error is not None and not isinstance(error, ServiceClosed | SupervisorFailed):
            lives.complain(f"was left ({how.__name__}), and {each.get_name()} was told {error!r}")
        elif each.cancelled() and each.get_name() == "adds":
            lives.complain(f"was left ({how.__name__}), and one who adds a job was canceled")


def _compare_end(lives: _Lives, here: asyncio.Task[None], how: Any) -> None:
    """The body's own end passes through, and nothing else."""
    error = None if here.cancelled() else here.exception()
    wanted = {_raises: _Unwanted, _fails: SupervisorFailed}.get(how)
    if here.cancelled() != (how is _is_canceled) or (error is None if wanted else error is not None):
        lives.complain(f"was left ({how.__name__}): {here!r}")
    elif wanted is not None and not isinstance(error, wanted):
        lives.complain(f"was left ({how.__name__}), and raised {error!r}")


async def _use(lives: _Lives) -> None:
    """It does what it is asked, and cannot be opened once more."""
    await lives.add()
    for id in lives.there:
        try:
            await lives.jobs.get(_TYPE, id)
        except JobNotFound:
            lives.complain(f"has said that {id!r} was added, and it is not there")
    found = await lives.jobs.pending_count(_TYPE)
    if found < len(lives.there):
        lives.complain(f"has {found} jobs, and has said that {lives.there} were added")
    if lives.drill.random.random() < 0.4:
        try:
            async with lives.jobs:
                lives.complain("was opened twice")
        except ServiceClosed as error:
            lives.complain(f"was to be opened twice, and raised {error!r}")
        except JobsError:
            pass
        await lives.add()
    if lives.is_watched_over:
        async with asyncio.timeout(lives.drill.moment):
            await lives.jobs.wait(_TYPE, max(lives.there, key=str), "pending")
    if not lives.store.is_open:
        lives.complain("is open, and its store is not")


# What else goes on


async def _runs_handlers(lives: _Lives, tasks: list[asyncio.Task[Any]]) -> None:
    """Run handlers in a task beside."""
    started = asyncio.Event()
    tasks.append(asyncio.create_task(lives.jobs.run(started=started.set), name="runs"))
    async with asyncio.timeout(10.0):
        await started.wait()
    with contextlib.suppress(JobsError):
        await lives.jobs.enqueue(_RUN)
    if lives.drill.random.random() < 0.3:
        try:
            await lives.jobs.run()
            lives.complain("has run its handlers twice at the same time")
        except InvalidSettings as error:
            lives.complain(f"runs handlers, and said {error!r}")
        except JobsError:
            pass
    await asyncio.sleep(lives.drill.random.choice([0.0, 0.3]))


# How it ends


async def _is_left(lives: _Lives, here: asyncio.Task[None]) -> None:
    """The body comes to its end."""


async def _raises(lives: _Lives, here: asyncio.Task[None]) -> None:
    """The body raises an error of its own."""
    raise _Unwanted


async def _is_canceled(lives: _Lives, here: asyncio.Task[None]) -> None:
    """Somebody cancels the body."""
    asyncio.get_running_loop().call_later(lives.drill.random.choice([0.0, 0.01]), here.cancel)
    await asyncio.sleep(100.0)


async def _fails(lives: _Lives, here: asyncio.Task[None]) -> None:
    """A part of it crashes that may not be started again: it says so to whoever asks, in the body as well."""
    lives.drill.run.crashes.crashed(lives.drill.client.process)
    for actor, task in tree_tasks(lives.jobs):
        if actor is not None and actor.name == "type server":
            task.cancel()
    try:
        await asyncio.sleep(lives.drill.moment)
        lives.complain("has failed, and its body goes on")
    except asyncio.CancelledError:
        # It is not left yet, and has failed.
        await lives.refuses(SupervisorFailed, "after it had failed")
        raise


async def _is_not_opened(lives: _Lives) -> None:
    """It cannot be opened, or whoever opens it is canceled: nothing of it is open afterwards."""
    drill, store = lives.drill, lives.store
    is_canceled = drill.random.random() < 0.5

    async def refuse(*_: object) -> Any:
        raise StoreError("not now")

    async def opened() -> None:
        async with lives.jobs:
            await asyncio.sleep(100.0)

    name = drill.random.choice(["open", "prefix"])
    if not is_canceled:
        setattr(store, name, refuse)
    task = asyncio.create_task(opened(), name="opens")
    if is_canceled:
        await drill.pass_turns()
        task.cancel()
    await asyncio.wait([task], timeout=drill.moment)
    late = await all_ended([task], 0.0)
    if not is_canceled:
        delattr(store, name)
    if late:
        lives.complain(f"was {'canceled' if is_canceled else 'refused'} as it was opened, and that has not ended")
    elif task.cancelled() != is_canceled or not (is_canceled or isinstance(task.exception(), StoreError)):
        lives.complain(f"was to be opened, which the store refused ({name}) or somebody canceled: {task!r}")
    _look(lives, "not opened")
    await lives.refuses(ServiceClosed, "after it could not be opened")


def _look(lives: _Lives, how: str) -> None:
    """Nothing is left of a life."""
    jobs = lives.jobs
    for what in held_after(jobs):
        lives.complain(f"was left ({how}), and holds {what}")
    if lives.store.is_open:
        lives.complain(f"was left ({how}), and its store is open")
    if (watches := lives.store.metrics()["watches"]) != 0:
        lives.complain(f"was left ({how}), and has {watches} watches")
    parts = [jobs.supervision()] if jobs.supervision() else []
    while parts:
        part = parts.pop()
        parts += part.get("children", [])
        if part["state"] == "running":
            lives.complain(f"was left ({how}), and {part['name']} runs")
