"""Stores that really meet commits of unknown outcome, each when a test wants it, on every kind that can."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Literal

from jobs_service import Settings
from jobs_service.errors import CommitUnknown, TransactionConflict
from jobs_service.sources import Sources
from jobs_service.store import Store
from jobs_service.store.fdb.client import TRANSACTION_TIMED_OUT
from jobs_service.store.memory import Faults, MemoryStore, MemoryTransaction
from jobs_service.testing import Choices, Cluster, Plan, SimulatedStore, SimulatedTransaction
from jobs_service.testing.cluster import ClientError
from tests.stores import FDB_VARIABLE, plain_settings

Fate = Literal["answered", "unanswered", "lost", "conflict", "timed out", "late"]
"""What becomes of a commit: it happens; it happens, and nobody knows; it does not, and nobody knows; it does not; it
happens, and the caller is told that its time is up; it arrives when the caller was told that and has found out that it
did not happen."""

UNKNOWN: Final[tuple[Fate, ...]] = ("unanswered", "lost", "timed out", "late")
"""The fates after which the store must find out what they were."""

UNSURE_KINDS: Final = ("memory", "simulated", *(["fdb"] if FDB_VARIABLE in os.environ else []))
"""The kinds of store that can be made to meet such commits here; the embedded one knows of each."""

_HARD: Final = 0.5


class Fates:
    """What becomes of the coming commits of one store, and what others do after an unknown one.

    A commit that others prevent takes no fate, nor does a transaction that writes nothing.

    Attributes:
        coming: the fates; when there are no more, commits are answered.
        meanwhile: awaited once, when the next commit of unknown outcome has happened or been lost, before the store
            looks which it was and before the function is run again.
        met: how many of each kind there were.
    """

    def __init__(self) -> None:
        self.coming: deque[Fate] = deque()
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.met: list[Fate] = []
        self._unknown = False

    def plan(self, fates: Iterable[Fate], meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        """Set both."""
        self.coming = deque(fates)
        self.meanwhile = meanwhile
        self._unknown = False

    def take(self, fate: Fate) -> bool:
        """Return whether this is the present commit's fate, which then is used up."""
        if not self.coming or self.coming[0] != fate:
            return False
        self.met.append(self.coming.popleft())
        self._unknown = fate in UNKNOWN
        return True

    async def others(self) -> None:
        """Let others act if a commit was unknown."""
        if self._unknown and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()


class _MemoryFates(Faults):
    """Brings the fates to a memory store."""

    def __init__(self, fates: Fates) -> None:
        self._fates = fates

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        if not transaction.log:
            return
        # Nothing is on its way here: what would come late does not come.
        if self._fates.take("lost") or self._fates.take("late"):
            await self._fates.others()
            raise CommitUnknown("commit_unknown_result (1021): it did not happen")
        if self._fates.take("conflict"):
            raise TransactionConflict("not_committed (1020): for no reason")

    async def after_commit(self, transaction: MemoryTransaction) -> None:
        if transaction.stamp.value is None:
            return
        if self._fates.take("unanswered") or self._fates.take("timed out"):
            await self._fates.others()
            raise CommitUnknown("commit_unknown_result (1021): it happened")
        self._fates.take("answered")


class _ChosenFates(Choices):
    """Brings the fates to a simulated cluster, which asks for them at every commit in this order.

    Attributes:
        asking: whether they are asked for at the commit of a transaction function.
    """

    _FATES: Final[dict[str, Fate]] = {
        "commit_timed_out": "timed out",
        "conflict": "conflict",
        "commit_lost": "lost",
        "commit_unknown": "unanswered",
    }

    def __init__(self, fates: Fates) -> None:
        super().__init__(Plan(0), rates={"suspend": 0.5})
        self.asking = True
        self._fates = fates

    def fault(self, kind: str) -> float | None:
        fate = self._FATES.get(kind)
        if fate is None:
            return super().fault(kind)
        if not self.asking:
            return None
        if self._fates.take(fate):
            return _HARD
        if fate == "unanswered":
            self._fates.take("answered")
        return None


class _UnsureCluster(Cluster):
    """Others act when whoever met an unknown commit comes to find out."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fates: Fates) -> None:
        self._chosen = _ChosenFates(fates)
        super().__init__(loop, self._chosen)
        self._fates = fates
        self._late: list[SimulatedTransaction] = []

    @property
    def takes_time(self) -> bool:
        return True  # or nobody would come by `reach`

    async def reach(self) -> None:
        await self._fates.others()
        await super().reach()

    def submit(self, transaction: SimulatedTransaction) -> asyncio.Future[None]:
        self._chosen.asking = not transaction.is_housekeeping
        if self._chosen.asking and self._fates.take("late"):
            transaction.submitted = transaction.timed_out = True
            self._late.append(transaction)
            answer = self.loop.create_future()
            answer.set_exception(ClientError(TRANSACTION_TIMED_OUT, "Its time is up"))
            return answer
        return super().submit(transaction)

    def _commit(self, transaction: SimulatedTransaction, answer: asyncio.Future[None]) -> None:
        self._chosen.asking = not (transaction.is_housekeeping or transaction.timed_out)
        super()._commit(transaction, answer)
        if transaction.is_housekeeping and transaction.commit_version is not None:
            self._arrive_late(transaction)

    def _arrive_late(self, tombstone: SimulatedTransaction) -> None:
        """Have the commit arrive of which a tombstone says that it did not happen."""
        for each in self._late:
            if tombstone.conflicts.ranges[0] in each.conflicts.ranges:
                self._late.remove(each)
                answered = self.loop.create_future()
                answered.cancel()
                super()._commit(each, answered)
                assert each.commit_version is None, "it was found out that this commit did not happen, and it has"
                break


def unsure_store(kind: str, fates: Fates, *, seed: int | str = 0, settings: Settings | None = None) -> Store:
    """Return a store, not yet open, of one of UNSURE_KINDS, on the running loop."""
    sources = Sources(seed)
    settings = settings or plain_settings()
    if kind == "memory":
        store = MemoryStore(settings=settings, sources=sources)
        store.faults = _MemoryFates(fates)
        return store
    if kind == "fdb":
        from tests.fdb_stores import UnsureFdbStore, clear_cluster

        clear_cluster(os.environ[FDB_VARIABLE])
        return UnsureFdbStore(os.environ[FDB_VARIABLE], fates, settings=settings, sources=Sources())
    cluster = _UnsureCluster(asyncio.get_running_loop(), fates)
    return SimulatedStore(cluster, None, settings=settings, sources=sources)


def past_states(store: Store) -> int:
    """Return how many keys a store keeps past values of; none when every transaction has ended."""
    if isinstance(store, SimulatedStore):
        return store.cluster.versions.kept
    assert isinstance(store, MemoryStore)
    return store.versions.kept
