"""Access of operations to the store: only while the service is open, and never from its own transaction functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from jobs_service.actors.context import Context
from jobs_service.errors import ServiceClosed, SupervisorFailed, anew
from jobs_service.layer.keyspace import Keyspace, Place, TypeKeys, place_of
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobId, JobType
from jobs_service.store.base import Transaction, Watch
from jobs_service.store.sync_transaction import foreign_await

T = TypeVar("T")


class StoreAccess:
    """The gate between a service's operations and the store.

    Attributes:
        is_open: whether operations are admitted.
        is_leaving: whether the service is being left.
        failure: why the service has failed; raised by every operation.
        inside: the code (see `running_code`) that runs transaction functions at present.
    """

    def __init__(self, context: Context) -> None:
        self.is_open = False
        self.is_leaving = False
        self.failure: SupervisorFailed | None = None
        self._context = context
        self.inside: set[asyncio.Task[Any] | int | None] = set()
        # Watches of callers to be woken when the service is closed.
        self._watches: set[Watch] = set()

    def close(self) -> None:
        """Admit no more operations, and fire the watches of waiting callers, whose next operation then fails."""
        self.is_open = False
        for watch in [*self._watches]:
            watch.fire()

    async def until_fired(self, watch: Watch) -> None:
        """Wait for a watch, at most until the service is closed.

        Raises:
            StoreError: the watch was lost.
        """
        if not self.is_open:
            return
        self._watches.add(watch)
        try:
            await watch.wait()
        finally:
            self._watches.discard(watch)

    @property
    def keyspace(self) -> Keyspace:
        """The keyspace of all types."""
        self.check_open()
        return self._context.keyspace

    def keys(self, type: JobType) -> TypeKeys:
        """Return the keys of a type."""
        if self.inside or not self.is_open:
            self.check_open()
        return self._context.keyspace.of(type)

    def place(self, type: JobType, id: JobId) -> Place:
        """Return the place of a job: the keys of its type, its id, and its id as keys contain it."""
        if self.inside or not self.is_open:
            self.check_open()
        return place_of(self._context.keyspace.of(type), id)

    async def read(self, function: Callable[[Transaction], Coroutine[Any, Any, T]]) -> T:
        """Run a function in a read-only transaction."""
        self.check_open()
        return await self._context.read(function)

    async def transact(self, operation: Callable[[UnitOfWork], Awaitable[T]]) -> T:
        """Run an operation on a unit of work in a transaction of its own."""
        self.check_open()
        return await self._context.transact(operation)

    async def transact_after(self, before: asyncio.Future[Any], operation: Callable[[UnitOfWork], Awaitable[T]]) -> T:
        """Do `transact`, but commit only when another call has taken effect."""
        self.check_open()
        return await self._context.transact_after(before, operation)

    def check_open(self) -> None:
        """Raise an error if the service admits no operation.

        Raises:
            SupervisorFailed: the service has failed.
            ServiceClosed: the service is not open, or is being left.
            StoreError: the caller is a transaction function, which must use its transaction instead.
        """
        if self.is_open and not self.inside:
            return
        if self.failure is not None:
            raise anew(self.failure)
        if not self.is_open:
            # While the service is being left, it stays open until its handlers, which need it, have ended.
            raise (
                being_left()
                if self.is_leaving
                else ServiceClosed("the service is not open: enter it with `async with`")
            )
        # Some transaction function is running. Other code may call meanwhile, that function may not.
        if running_code() in self.inside:
            raise foreign_await("the service itself instead of the transaction that it was given")


def being_left() -> ServiceClosed:
    """Return the error for an operation on a service that is being left."""
    return ServiceClosed("the service is being left: it ends what was begun, and takes nothing new")


def running_code() -> asyncio.Task[Any] | int | None:
    """Return the identity of the calling code: its task or, if no loop runs, its thread."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.get_ident()
