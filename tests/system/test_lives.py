"""Lives of many jobs in weather of every kind."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from jobs_service import (
    JobCanceled,
    JobExists,
    JobNotFound,
    JobsService,
    JobState,
    JobTransaction,
    Removal,
    Settings,
    WorkerConflict,
)
from jobs_service.sources import Sources
from jobs_service.store import Transaction
from tests.checker import assert_sound
from tests.unsure import UNKNOWN, UNSURE_KINDS, Fate, Fates, past_states, unsure_store
from tests.virtual_time import VirtualTimeLoop, run_virtual

ONE = (1).to_bytes(8, "little")
PENDING, RUNNING, FINISHED = JobState.PENDING, JobState.RUNNING, JobState.FINISHED
_OTHER_FATES: list[Fate] = ["conflict", *UNKNOWN]


class Weather(Fates):
    """Fates at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._choose = random.Random(seed)

    def take(self, fate: Fate) -> bool:
        if not self.coming:
            self.coming.append("answered" if self._choose.random() < 0.5 else self._choose.choice(_OTHER_FATES))
        return super().take(fate)


class Life:
    """The jobs of one type, which nobody else touches: every answer is known beforehand."""

    def __init__(self, jobs: JobsService, type: str, choose: random.Random) -> None:
        self._jobs = jobs
        self._type = type
        self._choose = choose
        self.effects: Counter[str] = Counter()

    async def live(self, steps: int) -> None:
        """Bring one job after the other through a life of random operations."""
        await self._jobs.set_type_timeout(self._type, 3600)
        for number in range(steps):
            await self._one(f"{self._type} {number}")

    async def _one(self, id: str) -> None:
        jobs, type, choose = self._jobs, self._type, self._choose
        if choose.random() < 0.5:
            await jobs.add(type, id, 0)
        else:
            await self._with_effect(id, lambda tx: tx.add(type, id, 0))
        if choose.random() < 0.3:
            with pytest.raises(JobExists):
                await jobs.add(type, id, "other")
        rounds = 1
        while rounds:
            rounds -= 1
            worker = await jobs.accept(type, timeout=choose.choice([0, None]), spread=choose.choice([1, 3]))
            assert worker is not None
            assert worker.id == id
            if choose.random() < 0.3:
                await worker.release()
                rounds += 1
                continue
            if choose.random() < 0.5:
                mark = choose.random()
                await self._with_effect(id, lambda tx, job=worker, mark=mark: tx.update(job, mark))  # type: ignore[misc]
                assert (await jobs.get(type, id)).data == mark
            if choose.random() < 0.3:
                flagged = await worker.resubmit()
                assert bool(flagged.resubmit)
                rounds += 1
            if choose.random() < 0.2:
                assert await jobs.remove(type, id) is Removal.CANCELED
                rounds = 0
                with pytest.raises(JobCanceled):
                    await worker.update()
            mark = choose.random()
            await self._with_effect(id, lambda tx, job=worker, mark=mark: tx.finish(job, mark))  # type: ignore[misc]
            job = await jobs.get(type, id)
            assert (job.data, job.state) == (mark, PENDING if rounds else FINISHED)
            with pytest.raises(WorkerConflict):
                await worker.finish()
            if not rounds and choose.random() < 0.3:
                assert (await jobs.resubmit(type, id, data=1)).state is PENDING
                rounds = 1
        if choose.random() < 0.3:
            await self._with_effect(f"{id} beside", _nothing)
        if choose.random() < 0.5:
            assert await jobs.remove(type, id) is Removal.REMOVED
            with pytest.raises(JobNotFound):
                await jobs.remove(type, id)

    async def _with_effect(self, id: str, operation: Callable[[JobTransaction], Awaitable[object]]) -> None:
        """Do something and count it, in one transaction."""

        async def function(tx: JobTransaction) -> None:
            tx.kv.add(b"effects/" + id.encode(), ONE)
            await operation(tx)

        await self._jobs.transact(function)
        self.effects[id] += 1


async def _nothing(tx: JobTransaction) -> None:
    """Touch no job."""


@pytest.mark.parametrize("kind", [kind for kind in UNSURE_KINDS if kind != "fdb"])
def test_the_lives_of_many_jobs_go_as_they_must_in_any_weather(kind: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")

    async def effects(tr: Transaction) -> Counter[str]:
        pairs = await tr.get_range(b"effects/", b"effects0")
        return Counter({key[8:].decode(): int.from_bytes(value, "little") for key, value in pairs})

    async def scenario() -> list[Fate]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        weather = Weather(seed)
        store = unsure_store(kind, weather, seed=seed, settings=Settings(transaction_timeout=600))
        await store.open()
        choose = random.Random(seed)
        sources = [Sources(f"{seed} {number}", wall_time=loop.wall_time) for number in range(2)]
        async with JobsService(store, sources=sources[0]) as one, JobsService(store, sources=sources[1]) as other:
            lives = [Life(choose.choice([one, other]), f"t{n}", random.Random(choose.random())) for n in range(20)]
            async with asyncio.TaskGroup() as group:
                for life in lives:
                    group.create_task(life.live(10))
            expected: Counter[str] = Counter()
            for life in lives:
                expected += life.effects
            assert await store.read(effects) == expected
            assert [job async for job in one.list(state="running")] == []
            await assert_sound(store, now=loop.wall_time())
        await store.close()
        assert past_states(store) == 0
        return weather.met

    met = Counter(run_virtual(scenario()))
    print(met)
    # Some 260 of each on average, by chance: that all weathers were there is what counts.
    assert all(met[fate] > 100 for fate in ("answered", "conflict", *UNKNOWN))
