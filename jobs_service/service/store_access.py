"""How operations get to the store: only while the service is open, and never from its own transaction functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from jobs_service.actors.context import Context
from jobs_service.errors import ServiceClosed, SupervisorFailed, anew
from jobs_service.layer.keyspace import Keyspace, TypeKeys, place_of
from jobs_service.layer.unit_of_work import Place, UnitOfWork
from jobs_service.model import JobId, JobType
from jobs_service.store.base import Transaction, Watch
from jobs_service.store.driving import foreign_await

T = TypeVar("T")


class StoreAccess:
    """The gate that each operation of a service passes on its way to the store.

    Attributes:
        is_open: whether operations are admitted.
        is_leaving: the service is being left: what was begun is ended, and nothing new is admitted.
        failure: why the service has failed; raised to whoever asks for something.
        inside: the code (see `running_code`) that runs transaction functions at present.
    """

    def __init__(self, context: Context) -> None:
        self.is_open = False
        self.is_leaving = False
        self.failure: SupervisorFailed | None = None
        self._context = context
        self.inside: set[asyncio.Task[Any] | int | None] = set()
        # What callers wait for who are to be told when the service is closed.
        self._watches: set[Watch] = set()

    def close(self) -> None:
        """Admit nothing more, and wake those who wait for a watch: they learn that when they ask again."""
        self.is_open = False
        for watch in [*self._watches]:
            watch.fire()

    async def until_fired(self, watch: Watch) -> None:
        """Wait for a watch; at most until the service is closed, and not at all if it is closed already.

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
        """Where the keys of all types are."""
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
        """Run a function in a transaction that only reads."""
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
        """Raise why nothing can be asked of the service, if so.

        Raises:
            SupervisorFailed: the service has failed.
            ServiceClosed: it is not open, or is being left.
            StoreError: a transaction function asks, which must use its transaction instead.
        """
        if self.is_open and not self.inside:
            return
        if self.failure is not None:
            raise anew(self.failure)
        if not self.is_open:
            # While it is being left it stays open as long as handlers have to end, and need it.
            raise (
                being_left()
                if self.is_leaving
                else ServiceClosed("the service is not open: enter it with `async with`")
            )
        # Some transaction function is running. Others may call meanwhile, that function may not.
        if running_code() in self.inside:
            raise foreign_await("the service itself instead of the transaction that it was given")


def being_left() -> ServiceClosed:
    """Return the error for what is asked of a service that is being left."""
    return ServiceClosed("the service is being left: it ends what was begun, and takes nothing new")


def running_code() -> asyncio.Task[Any] | int | None:
    """Return the identity of the calling code: its task or, where no loop runs, its thread."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.get_ident()
