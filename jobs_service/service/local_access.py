"""The runner's access to the service of its own process: each call is a transaction, or shares one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from jobs_service.actors.context import Context
from jobs_service.batching import GroupCommit
from jobs_service.errors import RecordDamaged
from jobs_service.layer import running_jobs, type_settings
from jobs_service.layer.batch_bounds import Batch
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.record import Record, running_job
from jobs_service.layer.running_jobs import LockStatus
from jobs_service.layer.type_settings import Declared
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobState, JobType, RunningJob, Worker
from jobs_service.redaction import Redaction
from jobs_service.runner.service_access import EndCall, Held
from jobs_service.runner.ticker import AddedTicks, Periodic
from jobs_service.service.acceptor import Acceptor
from jobs_service.store.base import Transaction, Watch

T = TypeVar("T")


class LocalAccess:
    """See ServiceAccess.

    Args:
        context, operations, worker, acceptor: of the service.
    """

    def __init__(self, context: Context, operations: GroupCommit, worker: Worker, acceptor: Acceptor) -> None:
        self.context = context
        self.settings = context.settings
        self.sources = context.sources
        self.own_runs = context.own_runs
        self.serves_threads = context.store.serves_threads
        self.retried = context.retried
        self.worker = worker
        self._operations = operations
        self._acceptor = acceptor
        self.accept = acceptor.attempt
        self.count_due = acceptor.count_due
        self.is_crowded = operations.is_crowded

    @property
    def batch(self) -> Batch:
        return Batch.of(self.context.store.limits)

    def beat_in_thread(self, held: Sequence[Held], answered: Callable[[list[LockStatus]], object]) -> None:
        async def beat(unit: UnitOfWork) -> list[LockStatus]:
            return await running_jobs.beat(unit, held)

        self.context.transact_in_thread(beat, answered)

    def keys(self, type: JobType) -> TypeKeys:
        return self.context.keyspace.of(type)

    async def declare(
        self,
        keys: TypeKeys,
        wanted: Declared,
        secret: Redaction | None,
        *,
        may_change: bool = True,
        may_show: bool = True,
    ) -> tuple[Declared, Redaction | None]:
        async def declare(unit: UnitOfWork) -> tuple[Declared, Redaction | None]:
            hidden = (
                None if secret is None else await type_settings.declare_redaction(unit, keys, secret, may_show=may_show)
            )
            return await type_settings.declare(unit, keys, wanted, may_change=may_change), hidden

        return await self.context.transact(declare)

    async def beat(self, held: Sequence[Held]) -> list[LockStatus]:
        async def beat(unit: UnitOfWork) -> list[LockStatus]:
            return await running_jobs.beat(unit, held)

        return await self.context.transact(beat)

    async def look(
        self, keys: TypeKeys, held: Sequence[Held], *, watched: bool
    ) -> tuple[list[LockStatus], list[Watch]]:
        data_keys = [place[0].data + place[2] for place, _ in held]

        async def read(transaction: Transaction) -> tuple[list[bytes | None], list[Watch]]:
            watches = [] if watched else [transaction.watch(keys.watch_canceled)]
            return await transaction.snapshot.get_many(data_keys), watches

        raws, watches = await self.context.read(read)
        return [running_jobs.holding(raw, lock) for raw, (_, lock) in zip(raws, held, strict=True)], watches

    async def timeout(self, keys: TypeKeys) -> tuple[float | None, Watch]:
        async def read(transaction: Transaction) -> tuple[float | None, Watch]:
            watch = transaction.watch(keys.timeout)
            return await type_settings.timeout_if_any(transaction, keys), watch

        return await self.context.read(read)

    async def redaction(self, keys: TypeKeys) -> tuple[Redaction, Watch]:
        async def read(transaction: Transaction) -> tuple[Redaction, Watch]:
            watch = transaction.watch(keys.redaction)
            return await type_settings.redaction(transaction, keys), watch

        return await self.context.read(read)

    def end_all(
        self, calls: Sequence[EndCall], answer: Callable[[Sequence[Exception | None]], None], size: int
    ) -> None:
        self._operations.operate_all(calls, answer, size=size)

    async def end(self, call: EndCall) -> None:
        operation, place, arguments = call

        async def end(unit: UnitOfWork) -> None:
            await operation(unit, place, *arguments)

        await self.context.transact(end)

    def note_healthy(self, held: Held, answered: Callable[[RunningJob | Exception], object], size: int) -> None:
        place, lock = held

        def noted(answer: asyncio.Future[Any]) -> None:
            if not answer.cancelled():
                error = answer.exception()
                answered(running_job(answer.result(), None) if error is None else cast(Exception, error))

        work = self._operations.operate(running_jobs.update, place, lock, None, None, True, size=size)
        work.add_done_callback(noted)

    async def tick(self, periodic: Periodic, most: int, seen: float | None) -> AddedTicks:
        return await self.context.transact(lambda unit: periodic.add(unit, most, seen))

    async def watch_tick(self, periodic: Periodic, key: bytes) -> Watch | None:
        async def read(transaction: Transaction) -> tuple[Watch, bytes | None]:
            return transaction.watch(key), await transaction.get(key)

        watch, raw = await self.context.read(read)
        paused = self.keys(periodic.handler.type).paused
        if raw is None or (key != paused and _is_over(raw)):
            watch.cancel()
            return None
        return watch


def _is_over(raw: bytes) -> bool:
    """Return whether a tick's job has finished; true for an unreadable record, which would block its type for ever."""
    try:
        return Record.decode(raw).state is JobState.FINISHED
    except RecordDamaged:
        return True
