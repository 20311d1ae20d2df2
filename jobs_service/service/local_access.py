"""The access of a runner, and of running jobs, to the service of their own process: calls that share transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from jobs_service import run_data
from jobs_service.actors.context import Context, StoreAccess
from jobs_service.arguments import json_of
from jobs_service.batching import GroupCommit
from jobs_service.errors import InvalidJob, JobsError, JobTooLarge, RecordDamaged, a_kind_of, shown
from jobs_service.layer import creation, running_jobs, type_settings
from jobs_service.layer.batch_bounds import Batch
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.record import Record, job_of, running_job
from jobs_service.layer.running_jobs import LockStatus, encoded_ending
from jobs_service.layer.transaction import JobTransaction
from jobs_service.layer.type_settings import Declared
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import UNSET, EndedJob, Ending, Job, JobState, JobType, Progress, RunningJob, Worker
from jobs_service.redaction import Redaction
from jobs_service.runner.run import EndCall, Held
from jobs_service.runner.ticker import AddedTicks, Periodic
from jobs_service.service.acceptor import Acceptor
from jobs_service.service.transactions import Transactions
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
        self.accept = acceptor.attempt
        self.count_due = acceptor.count_due
        self.is_crowded = operations.is_crowded

    @property
    def batch(self) -> Batch:
        return Batch.of(self.context.store.limits)

    def beat_in_thread(self, held: Sequence[Held], answered: Callable[[list[LockStatus]], object]) -> None:
        self.context.transact_in_thread(lambda unit: running_jobs.beat(unit, held), answered)

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
        return await self.context.transact(lambda unit: running_jobs.beat(unit, held))

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


# Running jobs


class RunningJobCalls:
    """The Worker of the jobs that this service accepts.

    Args:
        access: of the service.
        operations: group commit, in which simultaneous operations of many jobs share a transaction.
        transactions: runs the functions of `finish_with`.
    """

    def __init__(self, access: StoreAccess, operations: GroupCommit, transactions: Transactions) -> None:
        self._access = access
        self._operations = operations
        self._transactions = transactions

    async def _update(self, job: RunningJob, data: Any) -> RunningJob:
        place = self._access.place(job.type, job.id)
        json = json_of(job.type, job.id, data)
        size = len(json or b"") + job._record.size()
        return running_job(await self._operations.operate(running_jobs.update, place, job.lock, json, size=size), self)

    async def _progress(self, job: RunningJob, progress: Progress) -> RunningJob:
        place = self._access.place(job.type, job.id)
        try:
            json = run_data.progress_json(progress)
        except (InvalidJob, JobTooLarge) as error:
            raise error.about(job.type, job.id) from None
        size = len(json) + job._record.size()
        work = self._operations.operate(running_jobs.update, place, job.lock, None, json, size=size)
        return running_job(await work, self)

    async def _finish(self, job: RunningJob, ending: Ending) -> Job:
        place = self._access.place(job.type, job.id)
        json, outcome, report = encoded_ending(job, ending)
        size = len(json or b"") + len(report.result or b"") + job._record.size()
        work = self._operations.operate(
            running_jobs.finish, place, job.lock, json, outcome, report, size=size, reads=place[0].retention
        )
        return job_of(await work)

    async def _finish_with(self, job: RunningJob, function: Callable[[JobTransaction], Any]) -> EndedJob[Any]:
        """Run a function and finish the job in the same transaction; the function's return value is the result."""
        if not callable(function):
            raise JobsError(f"{shown(function)}: {a_kind_of(function)}; finish_with takes a function of a transaction")

        async def work(tx: JobTransaction) -> Job:
            result = function(tx)
            if hasattr(result, "__await__"):
                result = await result
            # A Job was returned by an operation on another job, and is no result of this one.
            return await tx.finish(job, result=UNSET if isinstance(result, Job) else result)

        ended = await self._transactions.transact(self, work)
        return EndedJob(ended.type, ended.id, ended._record)

    async def _resubmit(self, job: RunningJob, data: Any, priority: Any, run_at: Any) -> RunningJob:
        place = self._access.place(job.type, job.id)
        spec = creation.spec_of(job.type, job.id, data, priority, run_at)
        size = spec.size() + job._record.size()
        return running_job(
            await self._operations.operate(running_jobs.resubmit, place, job.lock, spec, size=size), self
        )

    async def _release(self, job: RunningJob) -> Job:
        place = self._access.place(job.type, job.id)
        size = job._record.size()
        return job_of(await self._operations.operate(running_jobs.release, place, job.lock, size=size))

    def _check_caller(self) -> None:
        self._access.check_open()

    def _result_data(self, result: Any) -> Any:
        """Return a result unchanged: only the runner knows a job's handler."""
        return result

    def _ending(self, job: RunningJob, whether: bool) -> None:
        """Do nothing: only the runner keeps an account of its running jobs."""
