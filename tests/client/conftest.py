"""What the suites of the service call `jobs`: here a client of a service that is served over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobs_service import JobsService, Settings
from tests.client.served import ServedClient, served
from tests.service.subscriptions.support import Witness
from tests.service.support import T1, T2, TIMEOUT, running
from tests.stores import QUICKEST_AND_CLUSTER, StoreKind, one_of


@pytest.fixture(scope="session")
def settings() -> Settings:
    """Settings under which notifications come soon."""
    return Settings(notify_holdoff=0.01)


store_kind = one_of(QUICKEST_AND_CLUSTER[:1])


@pytest.fixture
def address(store_kind: StoreKind, tmp_path: Path) -> str:
    """The address of the store of a test."""
    return store_kind.address_in(tmp_path)


@pytest.fixture
async def jobs(address: str, settings: Settings) -> AsyncIterator[ServedClient]:
    """A client with the types T1 and T2, whose jobs are not lost while a test runs."""
    async with served(address, settings=settings) as client:
        await client.set_type_timeout(T1, TIMEOUT)
        await client.set_type_timeout(T2, TIMEOUT)
        yield client


@pytest.fixture
async def witness(jobs: JobsService) -> Witness:
    """A witness for the type T1."""
    return Witness(jobs, await running(jobs, "witness"))


@pytest.fixture
async def quiet(address: str, settings: Settings) -> AsyncIterator[ServedClient]:
    """A client of a service without a supervisor tree."""
    async with served(address, settings=settings, supervise=False) as client:
        await client.set_type_timeout(T1, TIMEOUT)
        yield client
