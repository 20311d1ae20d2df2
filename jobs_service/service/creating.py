"""Creating jobs, one or many: as many per transaction as the limits allow, one transaction after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain
from sys import modules
from typing import Any, TypeAlias

from jobs_service import tracing
from jobs_service.actors.context import Context, StoreAccess
from jobs_service.arguments import EnqueueRule, IfExists, check_force, check_if_exists, check_iterable, new_jobs
from jobs_service.batching import Answer, GroupCommit, SingleOperation, in_order, in_parts
from jobs_service.layer import creation
from jobs_service.layer.batch_bounds import KEYS_OF_A_JOB
from jobs_service.layer.creation import Spec, handler_of, new_job_spec, wanted
from jobs_service.layer.keyspace import Place, TypeKeys, place_of
from jobs_service.layer.record import JobSnapshot, enqueued_job, job_of
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import Job, JobId, JobType, NewJob, Removal
from jobs_service.model.enqueueing import Enqueueable, How
from jobs_service.service.handler_registry import HandlerRegistry
from jobs_service.service.lifecycle import ServiceTree

_Wanted: TypeAlias = tuple[JobId, Spec, EnqueueRule]
_Placed: TypeAlias = tuple[Place, Spec, EnqueueRule]


class Creator:
    """Adds, enqueues, resubmits and removes jobs; see the methods of JobsService.

    A single job shares its transaction with simultaneous calls. Of many jobs, new ones are written by pipelined
    transactions. For jobs that may exist already, the sizes of the rewritten records are known only after reading them:
    then each transaction takes as many jobs as it can hold.

    Args:
        context, access, operations, registry, tree: of the service.
    """

    def __init__(
        self,
        context: Context,
        access: StoreAccess,
        operations: GroupCommit,
        registry: HandlerRegistry,
        tree: ServiceTree,
    ) -> None:
        self._access = access
        self._context = context
        self._operations = operations
        self._registry = registry
        self._tree = tree
        self._most = context.settings.add_batch

    def add(
        self, type: JobType, id: JobId, data: Any, priority: Any, run_at: Any, if_exists: IfExists
    ) -> Awaitable[JobSnapshot]:
        if tracing.MODULE in modules:
            return self._add_traced(type, id, data, priority, run_at, if_exists)
        # Neither a coroutine nor a no-op span, each of which would take a twentieth of the time.
        future = self._operations.own_loop().create_future()
        self._operations.begin(self.adding(future, type, id, data, priority, run_at, if_exists))
        return future

    async def _add_traced(self, type: JobType, id: JobId, *arguments: Any) -> JobSnapshot:
        with tracing.sending("add", type, id):
            future: asyncio.Future[JobSnapshot] = self._operations.own_loop().create_future()
            self._operations.begin(self.adding(future, type, id, *arguments))
            return await future

    def adding(
        self, answer: Answer, type: JobType, id: JobId, data: Any, priority: Any, run_at: Any, if_exists: IfExists
    ) -> SingleOperation:
        """Return the operation of `add`, with all of its arguments checked and encoded; called on any thread."""
        place = self._access.place(type, id)
        spec = creation.spec_of(type, id, data, priority, run_at)
        arguments = spec, check_if_exists(if_exists)
        return SingleOperation(creation.add, place, arguments, answer, spec.size(), place[0].timeout)

    def begin(self, operation: SingleOperation) -> None:
        """Run what `adding` has returned, on the loop: the service may have been closed meanwhile."""
        self._access.check_open()
        self._operations.begin(operation)

    async def resubmit(self, type: JobType, id: JobId, data: Any, priority: Any, run_at: Any) -> Job:
        place = self._access.place(type, id)
        with tracing.sending("resubmit", type, id):
            spec = creation.spec_of(type, id, data, priority, run_at)
            return job_of(await self._operations.operate(creation.resubmit, place, spec, size=spec.size()))

    async def add_many(self, type: JobType, jobs: Iterable[NewJob], if_exists: IfExists) -> list[Job]:
        with tracing.sending("add", type) as span:
            added = await self._add_many(self._access.keys(type), jobs, check_if_exists(if_exists))
            tracing.sent(span, added)
            return added

    async def _add_many(self, keys: TypeKeys, jobs: Iterable[NewJob], rule: IfExists) -> list[Job]:
        async def write(unit: UnitOfWork, jobs: Sequence[_Placed]) -> list[Job]:
            places, specs, _ = zip(*jobs, strict=True)
            entries = await creation.add_many(unit, keys, places, specs, rule)
            return [Job(keys.type, entry.id, entry.record) for entry in entries if entry.record]

        self._access.check_open()

        def wants() -> Iterator[_Wanted]:
            for job in new_jobs(jobs):
                spec = new_job_spec(keys.type, job)  # refuses what is no job
                yield job.id, spec, rule

        return await self._in_batches(keys, wants(), write, rule == "resubmit")

    async def remove(self, type: JobType, id: JobId, force: bool) -> Removal:
        place = self._access.place(type, id)
        done: Removal = await self._operations.operate(creation.remove, place, check_force(force))
        return done

    async def enqueue(self, handler: Any, args: Any, arguments: dict[str, Any], how: How) -> Job:
        self._access.check_open()
        resolved = handler_of(handler, self._registry.handlers)
        with tracing.sending("enqueue", resolved.type) as span:
            asked = wanted(resolved, args, arguments, how, self._context.sources)
            place = self._access.place(resolved.type, asked.id)
            work = self._operations.operate(
                creation.enqueue,
                place,
                asked.spec,
                asked.rule,
                resolved.timeout,
                size=asked.spec.size(),
                reads=place[0].timeout,
            )
            job = enqueued_job(await work)
            tracing.sent(span, job)
        self._tree.enqueued_for(place[0])
        return job

    async def enqueue_many(self, handler: Any, jobs: Iterable[Any], how: How) -> list[Job]:
        self._access.check_open()
        resolved = handler_of(handler, self._registry.handlers)
        keys = self._access.keys(resolved.type)
        with tracing.sending("enqueue", resolved.type) as span:
            added = await self._enqueue_many(resolved, keys, jobs, how)
            tracing.sent(span, added)
        if added:
            self._tree.enqueued_for(keys)
        return added

    async def _enqueue_many(
        self, handler: Enqueueable[Any, Any], keys: TypeKeys, jobs: Iterable[Any], how: How
    ) -> list[Job]:
        async def write(unit: UnitOfWork, jobs: Sequence[_Placed]) -> list[Job]:
            places, specs, rules = zip(*jobs, strict=True)
            added = await creation.enqueue_many(unit, places, [*zip(specs, rules, strict=True)], handler.timeout)
            return list(map(enqueued_job, added))

        wants = (wanted(handler, args, {}, how, self._context.sources) for args in check_iterable("jobs", jobs))
        return await self._in_batches(keys, wants, write, bool(how.unique))

    async def _in_batches(
        self,
        keys: TypeKeys,
        wants: Iterable[_Wanted],
        write: Callable[[UnitOfWork, Sequence[_Placed]], Awaitable[list[Job]]],
        rewrites: bool,
    ) -> list[Job]:
        """Write jobs, each batch in one transaction; if the records of existing ones are rewritten, as many as fit."""

        def writing(jobs: Sequence[_Placed]) -> Callable[[UnitOfWork], Awaitable[list[Job]]]:
            self._access.check_open()
            return lambda unit: write(unit, jobs)

        async def write_front(unit: UnitOfWork, jobs: Sequence[_Placed]) -> list[Job]:
            return await write(unit, jobs[: len(await unit.load_fitting(keys, [place[2] for place, _, _ in jobs]))])

        batches = self._batches(keys, wants)
        if rewrites:
            return await in_parts(batches, write_front, self._access.transact, self._most)
        written = await in_order(map(writing, batches), self._access.transact, self._access.transact_after)
        return [*chain.from_iterable(written)]

    def _batches(self, keys: TypeKeys, wants: Iterable[_Wanted]) -> Iterator[list[_Placed]]:
        """Yield batches of jobs, each for one transaction and well within the store's limits."""
        most, budget = self._most, self._context.store.limits.transaction // 2
        overhead = KEYS_OF_A_JOB * (len(keys.ready) + 64)
        batch: list[_Placed] = []
        size = 0
        for id, spec, rule in wants:
            place = place_of(keys, id)
            takes = spec.size() + KEYS_OF_A_JOB * len(place[2]) + overhead
            if batch and (len(batch) == most or size + takes > budget):
                yield batch
                batch, size = [], 0
            batch.append((place, spec, rule))
            size += takes
        if batch:
            yield batch
