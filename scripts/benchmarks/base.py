"""What all measurements share: figures with goals, a fresh store, and work that is timed."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from jobs_service import JobsService, JobTransaction, Settings

PROGRAM = str(Path(__file__).parents[1] / "bench.py")
"""What the processes that take part are started with."""

TYPE = "bench"
TIMEOUT = 300.0

GOALS_ON_A_CLUSTER = {
    "add_concurrent": 6000,
    "add_many": 30_000,
    "accept_finish": 1500,
    "accept_many_finish": 1500,
    "add_median_ms": 2,
    "add_p99_ms": 10,
    "finish_to_event_ms": 10,
    "subscriptions_10k_s": 10,
    "accept_other_process_ms": 15,
    "runner": 5000,
    "runner_two_processes": 5000,
    "runner_types": 4000,
}
"""The goals of one server process that shares the machine with the measurement."""


_TEMPORARY = ("lmdb:", "sqlite:")
"""Addresses without a path: each measurement makes a store of its own."""


@dataclass(frozen=True)
class Figure:
    """One measured figure.

    Attributes:
        name: as in the table of docs/performance.md.
        value: in `unit`.
        unit: "/s", "us", "ms", "s" or "" for a ratio.
        goal: what it should reach.
        higher: whether more is better.
        what: a description for people.
    """

    name: str
    value: float
    unit: str
    goal: float
    higher: bool
    what: str

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.value >= self.goal if self.higher else self.value <= self.goal


class Measurements:
    """Measurements by name, each on a fresh store.

    Args:
        store: an address; `lmdb:` or `sqlite:` alone for a store in a temporary directory.
        scale: multiplies the number of jobs; 1 for the real figures.
    """

    def __init__(self, store: str | None, scale: float) -> None:
        self._store = "lmdb:" if store is None else store
        self.scale = scale
        self.on_a_cluster = self._store.startswith("fdb:")

    async def measure(self, name: str) -> list[Figure]:
        """Return the figures of one measurement."""
        await self.fresh()
        figures: list[Figure] = await getattr(self, name)()
        goals = GOALS_ON_A_CLUSTER if self.on_a_cluster else {}
        return [replace(figure, goal=goals.get(figure.name, figure.goal)) for figure in figures]

    async def fresh(self) -> None:
        """Remove all jobs of a store that was given."""
        if self._store in _TEMPORARY:
            return
        async with JobsService(self._store, supervise=False) as jobs:
            prefix = await jobs.store.prefix()

            async def clear(tx: JobTransaction) -> None:
                tx.kv.clear_range(prefix, prefix + b"\xff")

            await jobs.transact(clear)

    def count(self, jobs: int) -> int:
        """Return how many jobs to measure with."""
        return max(10, int(jobs * self.scale))

    @contextmanager
    def address(self) -> Iterator[str]:
        """Yield the address of a fresh store."""
        if self._store not in _TEMPORARY:
            yield self._store
            return
        with tempfile.TemporaryDirectory(prefix="jobs-bench-") as directory:
            yield f"{self._store}{directory}/store"

    @contextmanager
    def service(self, **settings: float) -> Iterator[JobsService]:
        """Yield a service, not yet entered, on a fresh store."""
        with self.address() as address:
            yield JobsService(address, settings=Settings(**settings))


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Return the seconds that something takes."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def together(works: Iterator[Awaitable[object]]) -> None:
    """Wait for several at the same time."""
    await asyncio.gather(*works)


async def work(jobs: JobsService, workers: int, most: int | None = None, spread: int | Literal["adaptive"] = 1) -> None:
    """Accept and finish jobs until there are none, or `most` are done."""
    left = most

    async def worker() -> None:
        nonlocal left
        while left is None or left > 0:
            if left is not None:
                left -= 1
            job = await jobs.accept(TYPE, timeout=0, spread=spread)
            if job is None:
                return
            await job.finish()

    await together(worker() for _ in range(workers))
