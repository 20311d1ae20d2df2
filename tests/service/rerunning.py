"""Services whose next commit is of unknown outcome, for the tests of transaction functions that run twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from jobs_service import JobsService, JobState
from jobs_service.store import Store
from tests.service.support import T1, T2, TIMEOUT
from tests.stores import plain_settings
from tests.unsure import Fate, Fates, unsure_store

PENDING, RUNNING, FINISHED = JobState.PENDING, JobState.RUNNING, JobState.FINISHED


class Unsure:
    """A service whose next commit is of unknown outcome.

    Attributes:
        jobs: the service.
        others: another one on the same store.
        fates: of the store's commits.
    """

    def __init__(self, jobs: JobsService, others: JobsService, fates: Fates) -> None:
        self.jobs = jobs
        self.others = others
        self.fates = fates

    def next(self, fate: Fate, meanwhile: Callable[[], Awaitable[object]] | None = None) -> JobsService:
        """Return the service, whose next commit meets this fate; then `meanwhile` is done before anybody looks."""
        self.fates.plan([fate], meanwhile)
        return self.jobs


def quiet_service(store: Store) -> JobsService:
    """Return a service without a supervisor tree."""
    return JobsService(store, settings=plain_settings(), supervise=False)


@asynccontextmanager
async def opened(kind: str) -> AsyncIterator[Unsure]:
    """Open two services without supervisor trees on a store of their own, with two types."""
    fates = Fates()
    store = unsure_store(kind, fates)
    await store.open()
    try:
        async with quiet_service(store) as jobs, quiet_service(store) as others:
            await jobs.set_type_timeout(T1, TIMEOUT)
            await jobs.set_type_timeout(T2, TIMEOUT)
            yield Unsure(jobs, others, fates)
    finally:
        await store.close()


every_fate = pytest.mark.parametrize("fate", ["unanswered", "lost"])
ONE = (1).to_bytes(8, "little")
