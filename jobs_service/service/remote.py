"""Service operations for remote programs behind a server: the locks of their jobs outlive the server's process.

A worker behind a server goes on when the server is restarted. So its locks do not begin with the id of the server's
store instance, whose death would release the jobs, and its next call sends nothing but the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from jobs_service import tracing
from jobs_service.actors.context import Context
from jobs_service.actors.subscriptions import Hub
from jobs_service.arguments import IfExists, Spread, check_if_exists, check_timeout
from jobs_service.batching.group_commit import GroupCommit
from jobs_service.durations import Duration
from jobs_service.errors import InvalidJob, JobsError, WorkerConflict, job_name
from jobs_service.layer import creation, http_rows, queue
from jobs_service.layer.enqueueing import How, Named, wanted
from jobs_service.layer.entry import enqueued_job, job_of
from jobs_service.layer.http_rows import Repeated as Repeated
from jobs_service.layer.http_rows import Request as Request
from jobs_service.layer.http_rows import SessionRow as SessionRow
from jobs_service.layer.http_rows import TokenRow as TokenRow
from jobs_service.layer.keyspace import Place, place_of
from jobs_service.layer.record import Record
from jobs_service.layer.record_format import ZERO_PRIORITY
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import Job, JobId, JobType, NewJob, Priority, RunAt, RunningJob
from jobs_service.redaction import Redaction
from jobs_service.service import queries
from jobs_service.service.acceptor import Acceptor
from jobs_service.service.handler_registry import HandlerRegistry
from jobs_service.service.local_access import LocalAccess
from jobs_service.service.remote_runs import RemoteRuns
from jobs_service.service.running_job_calls import RunningJobCalls
from jobs_service.service.store_access import StoreAccess
from jobs_service.service.tree import ServiceTree
from jobs_service.store.base import Watch

_LOCK_BYTES = 16
_NO_SEQ = bytes(12)
_STAMP_BYTES = 8


class Remote:
    """The operations that a server for remote programs needs beside the public ones.

    Args:
        context, access, operations, acceptor, worker, registry, tree, hub: of the service.
        runs: the access of its runner.

    Attributes:
        access, context, hub: of the service.
        runs: the operations of runners elsewhere.
        until_fired: waits for a watch, at most until the service is closed.
    """

    def __init__(
        self,
        context: Context,
        access: StoreAccess,
        operations: GroupCommit,
        acceptor: Acceptor,
        worker: RunningJobCalls,
        registry: HandlerRegistry,
        tree: ServiceTree,
        hub: Hub,
        runs: LocalAccess,
    ) -> None:
        self.context = context
        self.access = access
        self.hub = hub
        self.runs = RemoteRuns(access, runs)
        self.until_fired = access.until_fired
        self._operations = operations
        self._acceptor = acceptor
        self._worker = worker
        self._registry = registry
        self._tree = tree

    async def accept(
        self,
        type: JobType,
        limit: int,
        *,
        max_priority: Priority | None = None,
        due_by: RunAt | None = None,
        timeout: Duration | None = None,
        spread: Spread = 1,
        worker: str = "",
        max_history: int | None = None,
    ) -> list[RunningJob]:
        """Take jobs for a remote worker; see JobsService.accept_many.

        Args:
            worker: its name in the jobs' history; empty for this process.
            max_history: history events to keep; None for as many as there are, and 20 at least.
        """
        keys = self.access.keys(type)
        settings, sources = self.context.settings, self.context.sources
        who, batch = worker or sources.worker, settings.pending_batch
        found = queue.terms(limit, max_priority, due_by, spread, batch, who, max_history)
        return await self._acceptor.accept(keys, found._replace(is_elsewhere=True), check_timeout(timeout))

    def held(self, type: JobType, id: JobId, lock: bytes) -> RunningJob:
        """Return the running job of a lock without reading the record: all its operations compare locks.

        Raises:
            InvalidJob: an invalid type, id or lock.
        """
        if len(lock) != _LOCK_BYTES:
            raise InvalidJob(f"a lock of {len(lock)} bytes; a lock has {_LOCK_BYTES}").about(type, id)
        keys, id, _ = self.access.place(type, id)
        record = Record(lock, 0, _NO_SEQ, ZERO_PRIORITY, None, None, False, None, b"")
        return RunningJob(keys.type, id, record, self._worker)

    def running(self, job: Job, lock: bytes) -> RunningJob:
        """Return a job that was just read as the running job of a lock.

        Raises:
            WorkerConflict: another lock, or none, holds it.
        """
        if job._record.lock != lock:
            refused = f"job {job_name(job.type, job.id)} is not held by this lock any more"
            raise WorkerConflict(refused, type=job.type, id=job.id)
        return RunningJob(job.type, job.id, job._record, self._worker)

    async def still_held(self, jobs: Sequence[RunningJob]) -> list[RunningJob]:
        """Return those of a type's running jobs that their locks still hold, as they are now."""
        found = await self.jobs(jobs[0].type, [job.id for job in jobs]) if jobs else []
        return [
            RunningJob(now.type, now.id, now._record, self._worker)
            for job, now in zip(jobs, found, strict=True)
            if now is not None and now._record.lock == job.lock
        ]

    async def add_once(
        self,
        request: Request,
        type: JobType,
        id: JobId | None,
        data: Any,
        *,
        priority: Any = 0,
        run_at: Any = None,
        if_exists: IfExists = "error",
    ) -> Job | Repeated:
        """Add a job like `add`, unless the same request was carried out before.

        Args:
            request: recorded in the transaction that adds the job.
            id: None for a random one.
        """
        named = self.context.sources.token(_LOCK_BYTES).hex() if id is None else id
        place = self.access.place(type, named)
        spec = creation.spec_of(type, named, data, priority, run_at)
        return await self._once(place, spec.size(), request, creation.add, spec, check_if_exists(if_exists))

    async def add_many_once(
        self, request: Request, type: JobType, jobs: Sequence[NewJob], *, if_exists: IfExists = "error"
    ) -> list[Job] | Repeated:
        """Add jobs like `add_many`, but in one transaction, unless the same request was carried out before.

        Args:
            request: recorded in the transaction that adds the jobs.
            jobs: at least one.

        Raises:
            TransactionTooLarge: the jobs exceed the limits of one transaction. Nothing was added.
        """
        keys, rule = self.access.keys(type), check_if_exists(if_exists)
        with tracing.sending("add", type) as span:
            specs = [creation.new_job_spec(keys.type, job) for job in jobs]
            places = [place_of(keys, job.id) for job in jobs]

            async def work(unit: UnitOfWork) -> list[Job] | Repeated:
                found = await http_rows.add_many_once(unit, request, places, specs, rule)
                return found if isinstance(found, Repeated) else [job_of(entry) for entry in found]

            found = await self.access.transact(work)
            if not isinstance(found, Repeated):
                tracing.sent(span, found)
            return found

    async def stamp(self, type: JobType, of: str, known: str | None) -> tuple[str, Watch | None, float | None]:
        """Return the stamp of one aspect of a type: a text that differs after every change.

        Args:
            of: "queue" (jobs that become pending), "canceled" (running jobs that are taken away), "timeout" or
                "redaction".
            known: an earlier stamp.

        Returns:
            The stamp. If it equals the known one, also a watch, and for a queue the seconds until its next job is due.
        """
        keys = self.access.keys(type)
        key = {
            "queue": keys.watch_pending,
            "canceled": keys.watch_canceled,
            "timeout": keys.timeout,
            "redaction": keys.redaction,
        }[of]

        async def read(unit: UnitOfWork) -> tuple[str, Watch | None, float | None]:
            stamp = blake2b(await unit.transaction.get(key) or b"", digest_size=_STAMP_BYTES).hexdigest()
            if stamp != known:
                return stamp, None, None
            if of != "queue":
                return stamp, unit.transaction.watch(key), None
            nothing = await queue.wait_for_more(unit, keys)
            return stamp, nothing.watch, nothing.due_in

        return await self.access.transact(read)

    async def jobs(self, type: JobType, ids: Sequence[JobId]) -> list[Job | None]:
        """Return jobs as they are now, None for a missing one; raises RecordDamaged for an unreadable one."""
        return await queries.jobs(self.access, type, ids)

    def handler(self, type: JobType, redaction: Redaction | None = None) -> Named:
        """Return a handler to enqueue jobs of a type with, and with the redaction that the remote handler declares."""
        return Named(type, self._registry.handlers, redaction)

    async def enqueue_once(self, request: Request, handler: Named, data: Any, how: How) -> Job | Repeated:
        """Add a job like `enqueue`, unless the same request was carried out before."""
        self.access.check_open()
        asked = wanted(handler, data, {}, how, self.context.sources)
        place = self.access.place(handler.type, asked.id)
        found = await self._once(
            place, asked.spec.size(), request, creation.enqueue, asked.spec, asked.rule, handler.timeout
        )
        self._tree.enqueued_for(place[0])
        return found

    async def _once(
        self, place: Place, size: int, request: Request, operation: Callable[..., Any], *arguments: Any
    ) -> Job | Repeated:
        found = await self._operations.operate(http_rows.once, place, request, operation, *arguments, size=size)
        return found if isinstance(found, Repeated) else enqueued_job(found)

    # Tokens

    async def tokens(self) -> list[TokenRow]:
        """Return all tokens."""
        keyspace = self.access.keyspace
        return await self.access.read(lambda transaction: http_rows.read_tokens(transaction, keyspace))

    async def watched_tokens(self) -> tuple[list[TokenRow], Watch]:
        """Return all tokens, and a watch on their changes."""
        keyspace = self.access.keyspace
        return await self.access.read(lambda transaction: http_rows.watch_tokens(transaction, keyspace))

    async def add_token(self, row: TokenRow) -> None:
        """Add a token.

        Raises:
            JobsError: the name is taken.
        """
        if not await self.access.transact(
            lambda unit: http_rows.add_token(unit.transaction, self.access.keyspace, row)
        ):
            raise JobsError(f"there is a token {row.name} already; remove it first")

    async def add_session(self, row: SessionRow) -> None:
        """Add a login."""
        await self.access.transact(lambda unit: http_rows.add_session(unit, row))

    async def session(self, expires: float, digest: str) -> SessionRow | None:
        """Return a login, None if it does not exist."""
        keyspace = self.access.keyspace
        return await self.access.read(lambda transaction: http_rows.session(transaction, keyspace, expires, digest))

    async def remove_session(self, expires: float, digest: str) -> None:
        """End a login; a missing one is no error."""

        async def remove(unit: UnitOfWork) -> None:
            http_rows.remove_session(unit, expires, digest)

        await self.access.transact(remove)

    async def remove_token(self, name: str) -> None:
        """Remove a token.

        Raises:
            JobsError: there is no token of this name.
        """
        if not await self.access.transact(
            lambda unit: http_rows.remove_token(unit.transaction, self.access.keyspace, name)
        ):
            raise JobsError(f"there is no token {name}")
