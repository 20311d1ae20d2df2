"""Tests of this directory run on simulated loops, whose schedule is drawn, with a store in bad weather."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

import pytest

from jobs_service import Settings
from jobs_service.sources import Sources
from jobs_service.store import Store
from jobs_service.testing import Choices, Cluster, Plan, SimulatedLoop, SimulatedStore
from tests.contract import support

STORM = {
    "conflict": 0.2,
    "commit_lost": 0.2,
    "commit_unknown": 0.2,
    "stale": 0.1,
    "suspend": 0.5,
    "slow_answer": 0.1,
    "watch_late": 0.3,
}
"""What happens often, and leaves every promise of a store as it is. Not among them is what callers must expect: errors,
calls that take longer than their time limit, watches that are lost or fire for nothing."""

SEEDS = 2


class StormyLoop(SimulatedLoop):
    """A simulated loop with the weather of its seed."""

    def __init__(self, seed: int) -> None:
        self.choices = Choices(Plan(seed), rates=STORM, disorder=1.0)
        super().__init__(self.choices)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each test once per seed."""
    return {f"seed-{seed}": partial(StormyLoop, seed) for seed in range(SEEDS)}


@pytest.fixture(autouse=True)
def virtual_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour: it is over in no time, and a storm holds things up."""
    monkeypatch.setattr(support, "PATIENCE", 3600.0)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """An open, empty store that keeps its promises in the storm."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StormyLoop)
    cluster = Cluster(loop, loop.choices)
    cluster.latency = 0.01
    settings = Settings.model_construct(transaction_timeout=3600)
    store = SimulatedStore(cluster, None, settings=settings, sources=Sources(0))
    await store.open()
    yield store
    await store.close()
    assert cluster.idle
