"""A workload's view of the service in one process: the public interface, with every call noted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import fdb.tuple

from jobs_service import (
    Job,
    JobId,
    JobsError,
    JobsService,
    JobTransaction,
    JobType,
    NewJob,
    Removal,
    RunningJob,
    StoreError,
    StoreUnavailable,
)
from jobs_service.errors import TransactionTooLarge
from jobs_service.runner.handler import Handler
from jobs_service.testing import Process
from tests.simulation.accepting import Accepting
from tests.simulation.calls import OK, UNKNOWN, Call, asked
from tests.simulation.refusals import unfounded

if TYPE_CHECKING:
    from tests.simulation.run import Run

T = TypeVar("T")

EFFECTS = b"effects/"
MANY = 1000
"""Who asks for so many jobs wants all that a transaction can take."""

MIXED: ContextVar[bool] = ContextVar("whether a transaction function does as much as its user wants", default=False)


class Client:
    """One process's JobsService.

    Args:
        run: what is noted where.
        process: the caller.
        jobs: its open service.
    """

    def __init__(self, run: Run, process: Process, jobs: JobsService) -> None:
        self.run = run
        self.process = process
        self.jobs = jobs

    @property
    def version(self) -> int:
        """The cluster's newest version."""
        return self.run.world.cluster.versions.version

    def begin(self, name: str, type: JobType, id: JobId | None, options: Mapping[str, Any] | None = None) -> Call:
        """Note that a call begins; with its options, if they are known."""
        call = self.run.calls.begin(name, type, id, self.process, self.version)
        if options is not None:
            call.asked = asked(options, self.process.clock.wall_time())
        return call

    async def call(self, call: Call, work: Awaitable[T]) -> T:
        """Wait for the answer of a call, and note it.

        Raises:
            JobsError, TimeoutError: whatever the service raised.
        """
        outcome, result, began = UNKNOWN, None, self.run.world.loop.time()
        try:
            answer = await work
            outcome, result = OK, answer
            return answer
        except StoreUnavailable:
            raise  # It may still take effect.
        except (JobsError, TimeoutError) as error:
            outcome = _class_of(error)
            complaint = unfounded(self.run, call, error, began)
            if complaint is not None:
                self.run.complain(complaint)
            raise
        finally:
            self.run.calls.end(call, outcome, self.version, result)
            if result != []:  # An accept that found nothing is no news.
                self.run.world.note(f"{call}", self.process)

    def data(self, call: Call) -> dict[str, Any]:
        """Return data that name the call, and are as large as the run wants; in the calm they are small."""
        padding = "" if self.run.is_calm else self.run.sizes.pad(call.number)
        return {"call": call.number, "pad": padding} if padding else {"call": call.number}

    # Creators

    async def add(self, type: JobType, id: JobId, **options: Any) -> Job:
        """See JobsService.add."""
        call = self.begin("add", type, id, options)
        return await self.call(call, self.jobs.add(type, id, self.data(call), **options))

    async def add_many(
        self, type: JobType, ids: Sequence[JobId], run_at: float | None = None, **options: Any
    ) -> list[Job]:
        """See JobsService.add_many; every job is a call of its own."""
        calls = [self.begin("add", type, id, {"run_at": run_at}) for id in ids]
        outcome = UNKNOWN
        try:
            jobs = [NewJob(call.id or "", self.data(call), run_at=run_at) for call in calls]
            added = await self.jobs.add_many(type, jobs, **options)
            outcome = OK
            return added
        except StoreError as error:
            self._check_refusal(error, calls)
            raise  # Those before it may have taken effect.
        except JobsError as error:
            # All or nothing in one transaction: small ones fit into one, but for the smallest that a run draws.
            tight = self.run.sizes.large or self.jobs.store.limits.transaction < 20_000
            several = tight or len(ids) > self.jobs.settings.add_batch
            outcome = UNKNOWN if several else _class_of(error)
            raise
        finally:
            for call in calls:
                self.run.calls.end(call, outcome, self.version)
            self.run.world.note(f"add_many of {len(calls)}: {calls[0] if calls else ''}", self.process)

    async def many(self, calls: Sequence[Call], work: Awaitable[T]) -> T:
        """Wait for what carries out several calls, in as many transactions as it takes."""
        outcome = UNKNOWN
        try:
            answer = await work
            outcome = OK
            return answer
        except StoreError as error:
            self._check_refusal(error, calls)
            raise
        finally:
            for call in calls:
                self.run.calls.end(call, outcome, self.version)
            self.run.world.note(f"{len(calls)} of {calls[0]}", self.process)

    async def enqueue(self, handler: Handler[Any, Any], args: Callable[[int], object], **options: Any) -> Job:
        """See JobsService.enqueue; `args` makes the arguments of the call's number."""
        call = self.begin("enqueue", handler.type, options.get("id"), options)
        return await self.call(call, self.jobs.enqueue(handler, args(call.number), **options))

    async def resubmit(self, type: JobType, id: JobId, **options: Any) -> Job:
        """See JobsService.resubmit."""
        call = self.begin("resubmit", type, id, options)
        return await self.call(call, self.jobs.resubmit(type, id, data=self.data(call), **options))

    async def remove(self, type: JobType, id: JobId, *, force: bool = False) -> Removal:
        """See JobsService.remove."""
        return await self.call(self.begin("remove", type, id), self.jobs.remove(type, id, force=force))

    # Workers

    async def accept(self, type: JobType, limit: int = 1, **terms: Any) -> list[RunningJob]:
        """See JobsService.accept_many."""
        call = self.begin("accept", type, None)
        most = terms.get("max_priority")
        spread = terms.get("spread", 1)
        call.wanted = (
            None if most is None else fdb.tuple.pack((most,)),
            terms.get("due_by"),
            spread if isinstance(spread, int) else None,
        )
        asking = Accepting(self.run, self.process, type, limit, terms)
        try:
            if limit == 1 and call.number % 2:
                found = await self.call(call, self._accept_one(type, **terms))
            elif limit >= MANY and terms == {"timeout": 0} and call.number % 2:
                # Nobody takes fewer when these were too much.
                found = await self.call(call, self.jobs.transact(lambda tx: tx.accept_many(type, limit)))
            else:
                found = await self.call(call, self.jobs.accept_many(type, limit, **terms))
        except asyncio.CancelledError:
            self._complain(asking.gone())
            raise
        self._complain(asking.answered(found))
        call.locks = tuple(job.lock for job in found)
        for job in found:
            self.run.world.note(f"got {job.type!r}/{job.id!r} lock {job.lock.hex()[:6]}", self.process)
        return found

    def _complain(self, complaints: Iterable[str]) -> None:
        for complaint in complaints:
            self.run.complain(complaint)

    async def _accept_one(self, type: JobType, **terms: Any) -> list[RunningJob]:
        job = await self.jobs.accept(type, **terms)
        return [] if job is None else [job]

    async def update(self, job: RunningJob) -> RunningJob:
        """See RunningJob.update."""
        call = self._on("update", job)
        return await self.call(call, job.update(self.data(call)))

    async def again(self, job: RunningJob, **options: Any) -> RunningJob:
        """See RunningJob.resubmit."""
        call = self._on("worker resubmit", job, options)
        return await self.call(call, job.resubmit(data=self.data(call), **options))

    async def finish(self, job: RunningJob, **options: Any) -> Job:
        """See RunningJob.finish."""
        call = self._on("finish", job)
        return await self.call(call, job.finish(self.data(call), **options))

    async def finish_with_effect(self, job: RunningJob) -> Job:
        """Finish in one transaction with an effect, which is counted."""
        call = self._on("finish", job)

        async def finish(tx: JobTransaction) -> Job:
            tx.kv.add(EFFECTS + job.lock, b"\x01")
            return await tx.finish(job, self.data(call))

        self.run.effects.add(job.lock)
        return await self.call(call, self.jobs.transact(finish))

    async def release(self, job: RunningJob) -> Job:
        """See RunningJob.release."""
        return await self.call(self._on("release", job), job.release())

    # Several operations

    async def transact(self, calls: Iterable[Call], function: Callable[[JobTransaction], Awaitable[T]]) -> T:
        """See JobsService.transact; the calls are those whose numbers the function writes."""
        outcome = UNKNOWN
        mixed = MIXED.set(True)
        try:
            result = await self.jobs.transact(function)
            outcome = OK
            return result
        except StoreUnavailable:
            raise
        except (TimeoutError, JobsError) as error:
            outcome = _class_of(error)
            raise
        finally:
            MIXED.reset(mixed)
            for call in calls:
                self.run.calls.end(call, outcome, self.version)
                self.run.world.note(f"{call}, in a transaction", self.process)

    def _check_refusal(self, error: BaseException, what: object) -> None:
        """One operation always fits into a transaction, whatever others do at the same time."""
        if isinstance(error, TransactionTooLarge):
            self.run.complain(f"too large: {what} was refused: {error}")

    def _on(self, name: str, job: RunningJob, options: Mapping[str, Any] | None = None) -> Call:
        call = self.begin(name, job.type, job.id, options)
        call.locks = (job.lock,)
        return call


def _class_of(error: BaseException) -> str:
    return type(error).__name__
