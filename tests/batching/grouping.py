"""A group commit whose transactions can be held up, for its tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from jobs_service.actors.context import Context
from jobs_service.batching import GroupCommit
from jobs_service.layer import creation, reads
from jobs_service.layer.creation import Spec
from jobs_service.layer.keyspace import Place, pack_id
from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.record import Entry, JobSnapshot
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.store.memory import Faults, MemoryTransaction


class Group:
    """A group commit on a context, and what it does.

    Attributes:
        batches: how many operations each transaction had, counting the accepts of one group as one.
        given_back: ids of the jobs that were accepted for somebody who has gone.
    """

    def __init__(self, context: Context, *, overlaps: bool = False) -> None:
        self.context = context
        self.keys = context.keyspace.of("t")
        self.given_back: list[Any] = []
        self.runs = 0
        self.commit = GroupCommit(self._transact, self._give_back, overlaps=overlaps)

    async def _transact(
        self, function: Callable[[UnitOfWork], Awaitable[Any]], abandoned: Callable[[Any], None]
    ) -> Any:
        self.runs += 1
        return await self.context.transact(function, abandoned)

    def _give_back(self, entry: Entry) -> None:
        self.given_back.append(entry.id)

    def place(self, id: str) -> Place:
        return self.keys, id, pack_id(id)

    def add(self, id: str, data: Any = None, *, size: int = 0) -> asyncio.Future[JobSnapshot]:
        return self.commit.operate(creation.add, self.place(id), Spec(data, 0, None), "error", size=size)

    def accept(self, limit: int = 1, *, watch: bool = False) -> asyncio.Future[Any]:
        return self.commit.accept(self.keys, AcceptTerms(limit, None, None, 1, 100), watch=watch)

    async def stored(self) -> int:
        """Return how many jobs of the type are pending in the store."""
        count, _ = await self.context.read(lambda tr: reads.count(tr, self.keys, None, 10_000, None))
        return count


class Held(Faults):
    """Holds every commit until `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        await self.go.wait()


def ids(answer: Any) -> list[Any]:
    """Return the ids of accepted jobs."""
    assert isinstance(answer, list)
    return [entry.id for entry in answer]


def group_of(context: Context) -> Group:
    return Group(context)
