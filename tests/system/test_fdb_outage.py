"""A cluster that stands still, or is killed and started again, in the middle of work: nothing is lost or done twice.

`OUTAGE=20 pytest tests/system/test_fdb_outage.py` has it be away for so many seconds.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from jobs_service import JobNotFound, JobsService, JobState, Settings, StoreError, WorkerConflict
from tests.checker import assert_sound
from tests.system.fdb_server import FdbServer, missing
from tests.system.workloads import KIND, effects, finish_with_effect

SECONDS = float(os.environ.get("OUTAGE", "3"))
PATIENCE = 120.0 + 3 * SECONDS
MISSING = missing()

pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.xdist_group("fdb server"),
]


class Work:
    """Creators, workers and subscribers of one service, which go on whatever the store says.

    Attributes:
        added: jobs whose `add` was answered.
        ended: jobs whose subscriber was told of their end.
        refusals: what the store answered meanwhile, by kind.
    """

    def __init__(self, jobs: JobsService) -> None:
        self.added: list[str] = []
        self.ended: list[str] = []
        self.refusals: Counter[str] = Counter()
        self._jobs = jobs
        self._creating = True

    async def run(self, interfere: AsyncIterator[None]) -> None:
        """Work while somebody interferes, and until every job has ended."""
        async with asyncio.TaskGroup() as group:
            creators = [group.create_task(self._create(number, group)) for number in range(4)]
            workers = [group.create_task(self._work()) for _ in range(16)]
            async for _ in interfere:
                before = len(self.ended)
                async with asyncio.timeout(PATIENCE):
                    while len(self.ended) < before + 20:  # noqa: ASYNC110 - it has no event
                        await asyncio.sleep(0.01)
            self._creating = False
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*creators)
                while len(self.ended) < len(self.added):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            for worker in workers:
                worker.cancel()

    async def _create(self, creator: int, group: asyncio.TaskGroup) -> None:
        number = 0
        while self._creating:
            id = f"{creator}.{number}"
            try:
                await self._jobs.add(KIND, id, if_exists="ignore")
            except StoreError as error:
                self.refusals[type(error).__name__] += 1
                continue
            self.added.append(id)
            group.create_task(self._follow(id))
            number += 1
            await asyncio.sleep(0.01)

    async def _follow(self, id: str) -> None:
        """Be told of a job's end; one subscription lasts over any outage, once it has begun."""
        while True:
            try:
                last = None
                async for event in self._jobs.subscribe(KIND, id):
                    last = event.state
                assert last == JobState.FINISHED
                self.ended.append(id)
                return
            except JobNotFound:
                raise AssertionError(f"{id} is gone") from None
            except StoreError as error:
                if last is not None:
                    raise AssertionError(f"a subscription to {id} ended with {error!r}") from error
                self.refusals[type(error).__name__] += 1

    async def _work(self) -> None:
        while True:
            with suppress(WorkerConflict):
                try:
                    job = await self._jobs.accept(KIND)
                    assert job is not None
                    await finish_with_effect(self._jobs, job, "done")
                except StoreError as error:
                    self.refusals[type(error).__name__] += 1


async def stopped(server: FdbServer) -> AsyncIterator[None]:
    """Work, have the cluster stand still, work."""
    yield
    server.stop()
    await asyncio.sleep(SECONDS)
    server.go_on()
    yield


async def killed(server: FdbServer) -> AsyncIterator[None]:
    """Work, kill the cluster and start it again, work."""
    yield
    server.kill()
    await asyncio.sleep(SECONDS)
    server.start()
    yield


@pytest.mark.parametrize("interference", [stopped, killed])
async def test_an_outage_loses_nothing_and_has_nothing_happen_twice(interference: object, tmp_path: Path) -> None:
    assert callable(interference)
    # Operations give up within the outage, so that it is seen what comes after that.
    settings = Settings(transaction_timeout=min(10.0, SECONDS / 2))
    with FdbServer(tmp_path) as server:
        async with JobsService(server.address, settings=settings) as jobs:
            await jobs.set_type_timeout(KIND, 2.0)
            work = Work(jobs)
            await work.run(interference(server))
            print(len(work.added), "jobs;", dict(work.refusals))
            states = Counter([str(job.state) async for job in jobs.list(KIND)])
            assert states == {"finished": len(work.added)}
            assert await effects(jobs) == dict.fromkeys(work.added, 1)
            assert sorted(work.ended) == sorted(work.added)
            await assert_sound(jobs.store)
            tree = jobs.supervision()
            assert {child["state"] for child in tree["children"]} == {"running"}
            assert sum(int(child["restarts"]) for child in tree["children"]) == 0
