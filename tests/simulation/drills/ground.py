"""A store of a drill's own on which services live: what disturbs their transactions is exactly what the drill says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from jobs_service import JobsService, JobType, Settings
from jobs_service.errors import (
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TransactionConflict,
    TransactionTooLarge,
)
from jobs_service.layer.keyspace import pack_id
from jobs_service.sources import Sources
from jobs_service.store.base import Limits
from jobs_service.store.memory import Faults, MemoryStore, MemoryTransaction
from tests.simulation.drills.drill import Drill

SOON: Final = 0.5
"""Seconds within which the services of such a store have done whatever is to be done at once: it takes no time."""

TOO_MUCH: Final[tuple[Callable[[], StoreError], ...]] = (
    lambda: TransactionTooLarge("it is a drill"),
    lambda: StoreFull("it is a drill"),
    lambda: StoreDamaged("it is a drill"),
)
"""What may be avoided by doing less in one transaction."""

_SETTINGS: Final[dict[str, Any]] = {
    "notify_holdoff": 0.05,
    "type_check_period": 15.0,
    "expiry_check_period": 3.0,
    "activity_samples": 4,
    "transaction_timeout": 10.0,
    "process_heartbeat": 0.0,
}


class Doors(Faults):
    """Where transactions pass, wait or are refused.

    Attributes:
        shut: where they wait now: at "begin", "commit" or "answer"; None if they pass.
        refuse: called with each that is about to commit; may raise.
        begun: how often a function was run, or was to be.
        waiting: how many wait at the door that is shut.
    """

    def __init__(self) -> None:
        self.shut: str | None = None
        self.refuse: Callable[[MemoryTransaction], None] | None = None
        self.begun = 0
        self.waiting = 0
        self._opened = asyncio.Event()

    def open(self) -> None:
        """Let them pass."""
        self.shut = None
        self._opened.set()
        self._opened = asyncio.Event()

    async def before_begin(self) -> None:
        self.begun += 1
        await self._pass("begin")

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        await self._pass("commit")
        if self.refuse is not None:
            self.refuse(transaction)

    async def after_commit(self, transaction: MemoryTransaction) -> None:
        await self._pass("answer")

    async def _pass(self, where: str) -> None:
        while self.shut == where:
            self.waiting += 1
            try:
                await self._opened.wait()
            finally:
                self.waiting -= 1


class Ground:
    """A store in memory, and services on it.

    Args:
        drill: that it is part of.
        limits: of its transactions.
        overlaps: whether they are taken to run in parallel.
        settings: of its services, beside the usual ones.

    Attributes:
        doors: what its transactions pass.
        store, sources: its own.
        type: of its jobs.
    """

    def __init__(self, drill: Drill, *, limits: Limits | None = None, overlaps: bool = False, **settings: Any) -> None:
        process = drill.client.process
        self.drill = drill
        self.random = drill.random
        self.type: JobType = drill.type
        self.settings = Settings.model_construct(None).model_copy(update={**_SETTINGS, **settings})
        self.sources = self._new_sources("store")
        self.doors = Doors()
        self.store = MemoryStore(settings=self.settings, sources=self.sources)
        self.store.address = f"memory:{drill.type}"
        self.store.faults = self.doors
        self.store.limits = limits or self.store.limits
        vars(self.store)["overlaps"] = overlaps
        self.wall_time = process.clock.wall_time
        self._services = 0

    def _new_sources(self, name: str) -> Sources:
        seed = f"{self.drill.run.world.choices.plan.seed}/{self.drill.type}/{name}"
        return Sources(seed, wall_time=self.drill.client.process.clock.wall_time, worker="worker")

    def service(self, *, supervise: bool = True, **settings: Any) -> JobsService:
        """Return a service on the store, with settings of its own beside the usual ones."""
        self._services += 1
        chosen = self.settings.model_copy(update=settings)
        sources = self._new_sources(f"service {self._services}")
        return JobsService(self.store, settings=chosen, supervise=supervise, sources=sources)

    def time(self) -> float:
        """Return the time of the loop's clock."""
        return self.drill.time()

    def complain(self, what: str) -> None:
        """Say what is wrong."""
        self.drill.complain(what)

    def refuse_more_than(self, most: int, jobs: JobsService, error: Callable[[], StoreError]) -> None:
        """Have commits be refused that write the records of more jobs than so many."""
        data = jobs._context.keyspace.of(self.type).data

        def refuse(transaction: MemoryTransaction) -> None:
            if len(written(transaction, data)) > most:
                raise error()

        self.doors.refuse = refuse

    def refuse_those_of(self, id: str, jobs: JobsService, error: Callable[[], StoreError]) -> None:
        """Have commits be refused that write the record of one job."""
        key = jobs._context.keyspace.of(self.type).data + pack_id(id)

        def refuse(transaction: MemoryTransaction) -> None:
            if key in written(transaction, key):
                raise error()

        self.doors.refuse = refuse

    def refuse_next(self, count: int, error: Callable[[], StoreError]) -> None:
        """Have so many commits be refused."""
        left = count

        def refuse(transaction: MemoryTransaction) -> None:
            nonlocal left
            if left:
                left -= 1
                raise error()

        self.doors.refuse = refuse


def away() -> StoreError:
    """Return the error of a store that does not answer."""
    return StoreUnavailable("it is a drill")


def conflict() -> StoreError:
    """Return the error of a commit for which the function is to run again."""
    return TransactionConflict("it is a drill")


def written(transaction: MemoryTransaction, prefix: bytes) -> set[bytes]:
    """Return the keys with a prefix that a transaction writes."""
    return {key for _, key, *_ in transaction.log if key.startswith(prefix)}
