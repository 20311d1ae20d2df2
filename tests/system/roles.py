"""What the processes of a soak do, each in several tasks and for ever: create, work, cancel, subscribe.

Each writes a journal of what it began and what was answered. What must not be is an exception, which ends the process.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog

from jobs_service import (
    Job,
    JobCanceled,
    JobEvent,
    JobNotFound,
    JobsError,
    JobsService,
    JobState,
    NewJob,
    Removal,
    RunningJob,
    Settings,
    WorkerConflict,
)
from tests.system.workloads import KIND, Journal, finish_with_effect

SETTINGS = {"notify_holdoff": 0.005}
ACTIVITY_TIMEOUT = 0.6
"""Seconds after which the job of a killed worker is taken for lost."""
MOST_PENDING = 150
MOST_FINISHED = 300


class Log:
    """A journal of operations, each with a number of its own."""

    def __init__(self, path: str) -> None:
        self._journal = Journal(path)
        self._numbers = itertools.count()

    def write(self, *entry: Any) -> None:
        """Append what needs no answer."""
        self._journal.write(*entry)

    @asynccontextmanager
    async def around(
        self, operation: str, *ids: str, refusals: tuple[type[JobsError], ...] = ()
    ) -> AsyncIterator[None]:
        """Note that an operation begins, and that it was answered or refused; a refusal is not raised again."""
        number = next(self._numbers)
        self._journal.write("begin", number, operation, ids)
        try:
            yield
        except refusals as error:
            self._journal.write("refused", number, type(error).__name__)
        else:
            self._journal.write("done", number)


def quiet() -> None:
    """Log errors only: that jobs are lost is what a soak is for."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


Task = Callable[[JobsService, Log, random.Random, str], Coroutine[Any, Any, None]]


def _play(address: str, journal: str, name: str, tasks: list[Task]) -> None:
    async def play() -> None:
        log = Log(journal)
        async with JobsService(address, settings=Settings(**SETTINGS)) as jobs, asyncio.TaskGroup() as group:
            for number, task in enumerate(tasks):
                group.create_task(task(jobs, log, random.Random(f"{name} {number}"), f"{name}.{number}"))

    quiet()
    asyncio.run(play())


def creator(address: str, journal: str, name: str) -> None:
    """Add jobs for now and for later, one by one and many at once; have finished ones run again."""
    _play(address, journal, name, [_add, _add, _resubmit])


def worker(address: str, journal: str, name: str) -> None:
    """Run jobs: update them, give them back, have them run again, finish them with an effect."""
    _play(address, journal, name, [_work] * 4)


def canceler(address: str, journal: str, name: str) -> None:
    """Remove jobs in any state, and nearly all that have finished."""
    _play(address, journal, name, [_cancel, _tidy])


def subscriber(address: str, journal: str, name: str) -> None:
    """Follow jobs to their end."""
    _play(address, journal, name, [_follow] * 6)


def everything(address: str, journal: str, name: str) -> None:
    """Do all of that in one process."""
    _play(address, journal, name, [_add, _work, _work, _cancel, _follow])


async def _add(jobs: JobsService, log: Log, choose: random.Random, name: str) -> None:
    for count in itertools.count():
        id = f"{name}.{count}"
        if choose.random() < 0.1:
            ids = [f"{id}.{place}" for place in range(choose.randint(2, 8))]
            async with log.around("add_many", *ids):
                await jobs.add_many(KIND, [NewJob(one, "new", priority=choose.randint(-1, 1)) for one in ids])
        else:
            later = time.time() + choose.uniform(0, 0.5) if choose.random() < 0.2 else None
            async with log.around("add", id):
                await jobs.add(KIND, id, "new", priority=choose.randint(-1, 1), run_at=later)
        while await jobs.pending_count(KIND, limit=MOST_PENDING) == MOST_PENDING:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.05)


async def _some(jobs: JobsService, choose: random.Random, state: JobState, limit: int) -> list[Job]:
    """Return some jobs in a state, in any order."""
    found = []
    async for job in jobs.list(KIND, state=state, page_size=limit):
        found.append(job)
        if len(found) == limit:
            break
    choose.shuffle(found)
    return found


async def _resubmit(jobs: JobsService, log: Log, choose: random.Random, name: str) -> None:
    while True:
        await asyncio.sleep(0.05)
        for job in (await _some(jobs, choose, JobState.FINISHED, 50))[:2]:
            async with log.around("resubmit", str(job.id), refusals=(JobNotFound,)):
                await jobs.resubmit(KIND, job.id)


async def _work(jobs: JobsService, log: Log, choose: random.Random, name: str) -> None:
    while True:
        job = await jobs.accept(KIND, spread=choose.choice([1, 4]))
        assert job is not None
        assert job.run_at is None or job.run_at.timestamp() <= time.time(), f"{job.id!r} runs before its time"
        log.write("accepted", job.id)
        await _run(jobs, log, choose, job)


async def _run(jobs: JobsService, log: Log, choose: random.Random, job: RunningJob) -> None:
    id = str(job.id)
    mark = f"{os.getpid()} {choose.random()}"
    await asyncio.sleep(choose.choice([0, 0, 0, 0.01, 0.05]))
    with suppress(WorkerConflict):
        with suppress(JobCanceled):
            if choose.random() < 0.3:
                await job.update(mark)
            if choose.random() < 0.1:
                async with log.around("resubmit", id, refusals=(WorkerConflict, JobCanceled)):
                    await job.resubmit()
            if choose.random() < 0.05:
                await asyncio.sleep(2 * ACTIVITY_TIMEOUT)  # silent: it may well be another's afterwards
        if choose.random() < 0.05:
            async with log.around("release", id, refusals=(WorkerConflict,)):
                await job.release()
            return
        async with log.around("finish", id, refusals=(WorkerConflict,)):
            await finish_with_effect(jobs, job, mark)


async def _cancel(jobs: JobsService, log: Log, choose: random.Random, name: str) -> None:
    while True:
        await asyncio.sleep(0.05)
        for job in (await _some(jobs, choose, choose.choice([*JobState][:3]), 50))[:2]:
            await _remove(jobs, log, str(job.id), force=choose.random() < 0.3)


async def _tidy(jobs: JobsService, log: Log, choose: random.Random, name: str) -> None:
    while True:
        await asyncio.sleep(0.02)
        finished = await _some(jobs, choose, JobState.FINISHED, MOST_FINISHED)
        for job in finished[: len(finished) // 2]:
            await _remove(jobs, log, str(job.id), force=False)


async def _remove(jobs: JobsService, log: Log, id: str, *, force: bool) -> None:
    removal = None
    async with log.around("remove", id, refusals=(JobNotFound,)):
        removal = await jobs.remove(KIND, id, force=force)
    if removal is Removal.REMOVED:
        log.write("removed", id)


async def _follow(jobs: JobsService, log: Log, choose: random.Random, name: str) -> None:
    while True:
        open_jobs = await _some(jobs, choose, choose.choice([JobState.PENDING, JobState.RUNNING]), 50)
        if not open_jobs:
            await asyncio.sleep(0.02)
            continue
        if await follow(jobs, str(open_jobs[0].id)):
            log.write("followed", open_jobs[0].id)


async def follow(jobs: JobsService, id: str) -> int:
    """Subscribe to a job until it has ended; return how many events there were, 0 if there is no such job.

    Raises:
        AssertionError: they were not in order, or did not end as they must.
    """
    events: list[JobEvent] = []
    with suppress(JobNotFound):
        async with jobs.subscribe(KIND, id) as subscription:
            async for event in subscription:
                assert not events or event.state is JobState.REMOVED or (event.seq or b"") > (events[-1].seq or b"")
                events.append(event)
        assert events, f"a subscription to {id} had no event"
        assert events[-1].state in (JobState.FINISHED, JobState.REMOVED), events[-1]
    return len(events)
