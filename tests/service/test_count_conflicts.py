"""What is counted makes no transactions conflict, and is right whatever happens to jobs of a type at the same time."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

from jobs_service import JobsService, JobState, Outcome
from tests.checker import assert_sound
from tests.service.support import T1, TIMEOUT, listed, new_jobs
from tests.stores import StoreKind

SERVICES = 4
JOBS = 25
"""Of each service."""


@pytest.fixture
async def services(store_kind: StoreKind, tmp_path: Path) -> AsyncIterator[list[JobsService]]:
    """Services on one store, as in several processes: they share no transaction."""
    store = store_kind.make(tmp_path)
    await store.open()
    try:
        async with AsyncExitStack() as stack:
            services = [JobsService(store, supervise=False) for _ in range(SERVICES)]
            for service in services:
                await stack.enter_async_context(service)
            await services[0].set_type_timeout(T1, TIMEOUT)
            yield services
    finally:
        await store.close()


async def test_counts_are_those_of_the_jobs_whatever_happens_to_them_at_the_same_time(
    services: list[JobsService],
) -> None:
    done: Counter[str] = Counter()

    async def live(number: int, jobs: JobsService) -> None:
        """Add, take and end jobs, among them those of the others."""
        for step in range(JOBS):
            await jobs.add_many(T1, new_jobs(f"{number}-{step}-a", f"{number}-{step}-b"))
            done["added"] += 2
            job = await jobs.accept(T1, timeout=0)
            if job is None:
                continue
            done["started"] += 1
            match step % 5:
                case 0:
                    await job.release()
                    done["released"] += 1
                case 1:
                    await job.finish(outcome=Outcome.FAILED)
                    done["failed"] += 1
                case 2:
                    await job.finish()
                    done["succeeded"] += 1
                    await jobs.remove(T1, job.id)
                case 3:
                    await job.finish()
                    done["succeeded"] += 1
                    await jobs.resubmit(T1, job.id)
                    done["added"] += 1
                case _:
                    """It goes on running."""

    await asyncio.gather(*itertools.starmap(live, enumerate(services)))
    counts = (await services[0].counts(T1))[T1]
    told = {name: count for name, count in asdict(counts.totals).items() if count}
    assert told == done
    states = Counter(job.outcome or job.state for job in await listed(services[0], T1))
    assert (counts.ready, counts.running) == (states[JobState.PENDING], states[JobState.RUNNING])
    assert (counts.succeeded, counts.failed) == (states[Outcome.SUCCEEDED], states[Outcome.FAILED])
    assert counts.jobs == states.total()
    await assert_sound(services[0].store)
