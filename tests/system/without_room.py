"""What the processes of the tests of a full disk do: they add, run and follow jobs, and go on when there is no room."""

from __future__ import annotations

import asyncio
import functools
import itertools
import resource
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from jobs_service import JobsService, JobState, StoreFull, WorkerConflict
from tests.stores import settings_with
from tests.system.workloads import KIND, Journal, finish_with_effect, read_all_and_write

T = TypeVar("T")


def work_without_room(
    address: str, journal: str, name: str, signs: str, map_size: int | None = None, file_size: int | None = None
) -> None:
    """Add, run and follow jobs, which takes ever more room, and go on when there is none; read all the while.

    Args:
        address: of the store.
        journal: what was answered, and how often there was no room.
        name: begins the ids of the jobs.
        signs: a directory; with a file "room" in it file_size holds no longer; with "enough" no more jobs are added and
            the process ends when all have run; with "leave" it ends.
        map_size: of the store, bytes.
        file_size: what a file of this process may have, bytes.
    """
    if file_size is not None:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, most))
    asyncio.run(_work_without_room(address, Journal(journal), name, Path(signs), map_size))


async def _work_without_room(address: str, journal: Journal, name: str, signs: Path, map_size: int | None) -> None:
    sizes = {} if map_size is None else {"lmdb_map_size": map_size}
    settings = settings_with(retry_backoff=0.01, **sizes)
    async with JobsService(address, settings=settings) as jobs:
        await jobs.set_type_timeout(KIND, 2.0)
        followed: asyncio.Queue[str] = asyncio.Queue()
        tasks = [asyncio.create_task(_run_without_room(jobs, journal)) for _ in range(3)]
        tasks += [asyncio.create_task(_follow(jobs, journal, followed)) for _ in range(3)]
        names = (f"{name}.0", f"{name}.1")
        adding = [asyncio.create_task(_add_without_room(jobs, journal, each, signs, followed)) for each in names]
        while not await _may_go(jobs, signs, adding):
            await asyncio.sleep(0.05)
            for task in [*tasks, *adding]:
                if task.done():
                    task.result()
        # These end by themselves: a job that was added is noted.
        await asyncio.gather(*adding)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not [
            child for child in jobs.supervision()["children"] if child["restarts"] or child["state"] != "running"
        ]


async def _may_go(jobs: JobsService, signs: Path, adding: list[asyncio.Task[None]]) -> bool:
    if (signs / "room").exists():
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    if not (signs / "enough").exists():
        return (signs / "leave").exists()
    if not all(task.done() for task in adding):
        return False
    return not await jobs.pending_count(KIND) and not await jobs.active_ids(KIND)


async def _in_any_weather(
    jobs: JobsService, journal: Journal, call: Callable[[], Awaitable[T]], *, until: Callable[[], bool] | None = None
) -> T | None:
    """Call until there is room, or something else is so; then return None. What only reads goes on meanwhile."""
    while True:
        if until is not None and until():
            return None
        try:
            return await call()
        except StoreFull:
            journal.write("full")
            assert KIND in await jobs.types()
            async for job in jobs.list(KIND, page_size=10):
                assert (await jobs.get(KIND, job.id)).id == job.id
                break
            await asyncio.sleep(0.02)


async def _add_without_room(
    jobs: JobsService, journal: Journal, name: str, signs: Path, followed: asyncio.Queue[str]
) -> None:
    def ends() -> bool:
        return (signs / "enough").exists() or (signs / "leave").exists()

    for count in itertools.count():
        id = f"{name}.{count}"
        add = functools.partial(jobs.add, KIND, id, "x" * 3000)
        if await _in_any_weather(jobs, journal, add, until=ends) is None:
            return
        journal.write("added", id)
        if count % 10 == 0:
            followed.put_nowait(id)


async def _run_without_room(jobs: JobsService, journal: Journal) -> None:
    while True:
        job = await _in_any_weather(jobs, journal, lambda: jobs.accept(KIND))
        assert job is not None
        finish = functools.partial(finish_with_effect, jobs, job, "y" * 5000)
        try:
            await _in_any_weather(jobs, journal, finish)
        except WorkerConflict:
            journal.write("lost", job.id)
        else:
            journal.write("ran", job.id)


async def _follow(jobs: JobsService, journal: Journal, ids: asyncio.Queue[str]) -> None:
    while True:
        id = await ids.get()
        states = [event.state async for event in jobs.subscribe(KIND, id)]
        assert states[-1] == JobState.FINISHED
        journal.write("followed", id)


def open_without_room(path: str, journal: str, leave: int) -> None:
    """Fill the file system of a path but for some pages, then open a store there."""
    with open(f"{path}.filling", "ab", buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(max(0, file.tell() - 4096 * leave))
    read_all_and_write(path, journal)
