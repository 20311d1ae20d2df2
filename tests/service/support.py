"""What the tests of the public interface have in common: names, jobs brought into a state, and looks at the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from jobs_service import Job, JobsService, JobState, NewJob, RunningJob
from jobs_service.layer.keyspace import HOURS, MINUTES
from jobs_service.store import Transaction
from jobs_service.testing import World
from jobs_service.testing.world import Process

Tree = dict[str, Any]

T1 = "t1"
T2 = "t2"
J1 = "j1"
J2 = "j2"
TIMEOUT = 60.0
"""An activity timeout that no test outlives."""
LOST = 0.3
"""An activity timeout, in seconds, for jobs that are to be lost."""
FAR_AWAY = 4_102_444_800.0
"""The year 2100: a job scheduled then does not come due."""
FAR_DATE = datetime.fromtimestamp(FAR_AWAY, UTC)
LONG_AGO = 946_684_800.0
"""The year 2000: a job scheduled then is due."""
OVER = "x" * 100_001
"""More than a record may hold."""
OWN = (b"own/", b"own0")
"""The bounds of the keys that tests write beside the jobs."""
PATIENCE = 30.0
"""Seconds after which a test that waits for something gives up and fails."""


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return once the condition holds; fails after PATIENCE."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.005)


async def pass_moment(moment: float) -> None:
    """Return when the wall clock has passed a moment (seconds since the epoch)."""
    while (left := moment - time.time()) >= 0:  # noqa: ASYNC110 - the wall clock has no event
        await asyncio.sleep(left + 0.001)


async def waits(jobs: JobsService, count: int = 1) -> None:
    """Return when so many calls of `accept` and `accept_many` wait for a job: watching the store, or in line."""

    async def they_wait() -> bool:
        return sum((line.watch is not None) + len(line.behind) for line in jobs._waiting._lines.values()) == count

    await eventually(they_wait)


async def told(jobs: JobsService, count: int = 1) -> None:
    """Return when so many subscriptions, those of `wait` and `result` too, have been told a first event."""

    async def they_were_told() -> bool:
        hub = jobs._hub
        of_jobs = [targets for keys in hub.types() for targets in hub.targets(keys).values()]
        return sum(target.reported is not None for targets in of_jobs for target in targets) == count

    await eventually(they_were_told)


async def contents(jobs: JobsService) -> dict[bytes, bytes]:
    """Return every key and value of the jobs, watch keys and all; not what a store keeps for itself."""
    prefix = await jobs.store.prefix()

    async def all_pairs(tr: Transaction) -> dict[bytes, bytes]:
        return dict(await tr.get_range(prefix, prefix + b"\xfe"))

    return await jobs.store.read(all_pairs)


def in_a_process(serve: Callable[[Process], Awaitable[None]], seed: int = 1, **how: Any) -> None:
    """Run one process of a simulated world to its end, which must not be a failure.

    Args:
        serve: what the process does.
        seed: of the world.
        how: what else the world is made with.
    """

    async def main(world: World) -> None:
        process = world.start("a", serve)
        await process.ended()
        assert process.failure is None, process.failure

    World(seed, **how).run(main)


async def keys_left(jobs: JobsService) -> set[bytes]:
    """Return the keys of the jobs, without those of the counts by time: a minute may end in any test."""
    sections = jobs._context.keyspace.sections
    by_time = (sections[MINUTES], sections[HOURS])
    return {key for key in await contents(jobs) if not key.startswith(by_time)}


async def empty(jobs: JobsService) -> None:
    """Clear a store that other tests have used: the jobs, and the keys below "own/" that tests write."""
    prefix = await jobs.store.prefix()

    async def clear(tr: Transaction) -> None:
        # The format stays, which follows: a directory that has jobs and none is of the version that had none.
        tr.clear_range(prefix, prefix + b"\xff")
        tr.clear_range(*OWN)

    await jobs.store.transact(clear)


async def own_keys(jobs: JobsService) -> dict[bytes, bytes]:
    """Return the keys below "own/" that tests write beside the jobs."""

    async def pairs(tr: Transaction) -> dict[bytes, bytes]:
        return dict(await tr.get_range(*OWN))

    return await jobs.store.read(pairs)


async def listed(jobs: JobsService, *arguments: Any, **keywords: Any) -> list[Job]:
    """Return what `list` yields."""
    return [job async for job in jobs.list(*arguments, **keywords)]


async def accepted(jobs: JobsService, type: Any = T1, **keywords: Any) -> RunningJob:
    """Accept a job that must be there."""
    job = await jobs.accept(type, timeout=0, **keywords)
    assert job is not None
    return job


async def drained(jobs: JobsService, type: Any = T1, **keywords: Any) -> list[Any]:
    """Accept all that can be accepted, and return the ids in the order in which they came."""
    ids = []
    while (job := await jobs.accept(type, timeout=0, **keywords)) is not None:
        ids.append(job.id)
    return ids


async def running(jobs: JobsService, id: str = J1, data: Any = None, **keywords: Any) -> RunningJob:
    """Add a job of type T1 and accept it."""
    await jobs.add(T1, id, data, **keywords)
    job = await accepted(jobs)
    assert job.id == id
    return job


async def finished(jobs: JobsService, id: str = J1, data: Any = None, **keywords: Any) -> RunningJob:
    """Add a job of type T1, accept and finish it, and return the worker's handle, which is stale now."""
    worker = await running(jobs, id, data, **keywords)
    await worker.finish()
    return worker


async def canceled(jobs: JobsService, id: str = J1, data: Any = None, **keywords: Any) -> RunningJob:
    """Add a job of type T1, accept it and ask for its removal."""
    worker = await running(jobs, id, data, **keywords)
    await jobs.remove(T1, id)
    return worker


async def state(jobs: JobsService, id: Any = J1, type: Any = T1) -> JobState:
    """Return a job's state."""
    return (await jobs.get(type, id)).state


def new_jobs(*ids: str) -> list[NewJob]:
    """Return jobs to be added by `add_many`."""
    return [NewJob(id) for id in ids]


def node(jobs: JobsService, *path: str) -> Tree:
    """Return a node of the supervision tree by the names on the way to it from below the root."""
    found: Tree = jobs.supervision()
    for name in path:
        (found,) = [child for child in found["children"] if child["name"] == name]
    return found


@asynccontextmanager
async def busy(jobs: JobsService, *types: Any) -> AsyncIterator[None]:
    """Have something to do for the actors of these types: a running job that is subscribed to."""
    async with AsyncExitStack() as stack:
        for type in types:
            await jobs.add(type, "busy")
            assert await jobs.accept(type) is not None
            await anext(await stack.enter_async_context(jobs.subscribe(type, "busy")))

        async def all_run() -> bool:
            return monitors_and_notifiers(jobs) == (len(types), len(types))

        await eventually(all_run)
        yield


def monitors_and_notifiers(jobs: JobsService) -> tuple[int, int]:
    """Return how many of each are running."""
    return running_children(jobs, "monitors"), running_children(jobs, "notifiers")


def child_of_type(jobs: JobsService, supervisor: str, type: Any) -> Tree:
    """Return the child that a dynamic supervisor runs for a type."""
    found: Tree
    (found,) = [child for child in node(jobs, supervisor)["children"] if repr(type) in child["name"]]
    return found


def running_children(jobs: JobsService, supervisor: str) -> int:
    """Return how many children of a supervisor are running."""
    return sum(child["state"] == "running" for child in node(jobs, supervisor)["children"])


def kill(actor: str) -> None:
    """Cancel an actor's task, or one linked to it, from outside: what Erlang's exit(Pid, kill) comes to."""
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == actor]
    task.cancel()


async def removed(jobs: JobsService) -> RunningJob:
    """Return the handle of a worker whose job is gone."""
    worker = await running(jobs)
    await jobs.remove(T1, J1, force=True)
    return worker


async def released(jobs: JobsService) -> RunningJob:
    """Return the handle of a worker whose job is pending again."""
    worker = await running(jobs, data="kept")
    await worker.release()
    return worker


async def succeeded_by_another(jobs: JobsService) -> RunningJob:
    """Return the handle of a worker whose job runs under somebody else's lock."""
    worker = await released(jobs)
    await accepted(jobs)
    return worker
