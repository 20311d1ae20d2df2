"""Service operations for remote programs behind a server: the locks of their jobs outlive the server's process.

A worker behind a server goes on when the server is restarted. So its locks do not begin with the id of the server's
store instance, whose death would release the jobs, and its next call sends nothing but the lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal

from jobs_service import run_data, tracing
from jobs_service.actors.context import Context, StoreAccess
from jobs_service.actors.subscriptions import Hub
from jobs_service.arguments import IfExists, Spread, check_if_exists, check_keep, check_seconds, check_timeout, json_of
from jobs_service.batching import GroupCommit
from jobs_service.durations import Duration
from jobs_service.errors import InvalidJob, JobsError, WorkerConflict, job_name
from jobs_service.layer import creation, queue, rows, running_jobs
from jobs_service.layer.creation import NamedHandler, wanted
from jobs_service.layer.keyspace import ZERO_PRIORITY, Place, pack_priority, place_of
from jobs_service.layer.record import Record, enqueued_job, job_of
from jobs_service.layer.rows import RepeatableRequest as RepeatableRequest
from jobs_service.layer.rows import Repeated as Repeated
from jobs_service.layer.rows import SessionRow as SessionRow
from jobs_service.layer.rows import TokenRow as TokenRow
from jobs_service.layer.running_jobs import LockStatus, RunReport
from jobs_service.layer.type_settings import Declared
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import UNSET, Job, JobError, JobId, JobType, NewJob, Outcome, Priority, RunAt, RunningJob
from jobs_service.model.enqueueing import How
from jobs_service.model.type_state import Retention
from jobs_service.redaction import Redaction
from jobs_service.runner.run import EndCall, Held
from jobs_service.runner.schedule import Cron, Every, Missed
from jobs_service.runner.ticker import AddedTicks, Periodic, elsewhere
from jobs_service.service import queries
from jobs_service.service.acceptor import Acceptor
from jobs_service.service.handler_registry import HandlerRegistry
from jobs_service.service.lifecycle import ServiceTree
from jobs_service.service.local_access import LocalAccess, RunningJobCalls
from jobs_service.store.base import Watch

_HEAD: Final = 500
"""Approximate bytes of a job's record beside its worker's data."""

_LOCK_BYTES = 16
_NO_SEQ = bytes(12)
_STAMP_BYTES = 8


# Programs elsewhere


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
        request: RepeatableRequest,
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
        self, request: RepeatableRequest, type: JobType, jobs: Sequence[NewJob], *, if_exists: IfExists = "error"
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
                found = await rows.add_many_once(unit, request, places, specs, rule)
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

    def handler(self, type: JobType, redaction: Redaction | None = None) -> NamedHandler:
        """Return a handler to enqueue jobs of a type with, and with the redaction that the remote handler declares."""
        return NamedHandler(type, self._registry.handlers, redaction)

    async def enqueue_once(
        self, request: RepeatableRequest, handler: NamedHandler, data: Any, how: How
    ) -> Job | Repeated:
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
        self, place: Place, size: int, request: RepeatableRequest, operation: Callable[..., Any], *arguments: Any
    ) -> Job | Repeated:
        found = await self._operations.operate(rows.once, place, request, operation, *arguments, size=size)
        return found if isinstance(found, Repeated) else enqueued_job(found)

    # Tokens

    async def tokens(self) -> list[TokenRow]:
        """Return all tokens."""
        keyspace = self.access.keyspace
        return await self.access.read(lambda transaction: rows.read_tokens(transaction, keyspace))

    async def watched_tokens(self) -> tuple[list[TokenRow], Watch]:
        """Return all tokens, and a watch on their changes."""
        keyspace = self.access.keyspace
        return await self.access.read(lambda transaction: rows.watch_tokens(transaction, keyspace))

    async def add_token(self, row: TokenRow) -> None:
        """Add a token.

        Raises:
            JobsError: the name is taken.
        """
        if not await self.access.transact(lambda unit: rows.add_token(unit.transaction, self.access.keyspace, row)):
            raise JobsError(f"there is a token {row.name} already; remove it first")

    async def add_session(self, row: SessionRow) -> None:
        """Add a login."""
        await self.access.transact(lambda unit: rows.add_session(unit, row))

    async def session(self, expires: float, digest: str) -> SessionRow | None:
        """Return a login, None if it does not exist."""
        keyspace = self.access.keyspace
        return await self.access.read(lambda transaction: rows.session(transaction, keyspace, expires, digest))

    async def remove_session(self, expires: float, digest: str) -> None:
        """End a login; a missing one is no error."""

        async def remove(unit: UnitOfWork) -> None:
            rows.remove_session(unit, expires, digest)

        await self.access.transact(remove)

    async def remove_token(self, name: str) -> None:
        """Remove a token.

        Raises:
            JobsError: there is no token of this name.
        """
        if not await self.access.transact(lambda unit: rows.remove_token(unit.transaction, self.access.keyspace, name)):
            raise JobsError(f"there is no token {name}")


# Runners elsewhere


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a handler's run, or another attempt.

    Attributes:
        id, lock: the job.
        end: "finish" for the end; "crash" for another attempt, which counts; "stop" for one that does not.
        outcome, result, error: of the end; UNSET and None for no result and no error.
        reason: why, in words.
        run_at: the earliest time of the next attempt, seconds since the epoch; None for at once.
        asked: priority and time of a run that the handler itself has asked for; None for none.
        max_history: history events to keep; None for all.
        crashes, attempts: the count of crashes to store, None for the counted one, and the change of the attempts.
        anew: whether the earlier attempts do not count either.
    """

    id: JobId
    lock: bytes
    end: Literal["finish", "crash", "stop"]
    outcome: Outcome = Outcome.SUCCEEDED
    result: Any = UNSET
    error: JobError | None = None
    reason: str = ""
    run_at: float | None = None
    asked: tuple[Priority, float | None] | None = None
    max_history: int | None = None
    crashes: int | None = None
    attempts: int = 0
    anew: bool = False


class RemoteRuns:
    """The operations of runners in other processes.

    Args:
        access: of the service.
        runs: the runner's access to it.
    """

    def __init__(self, access: StoreAccess, runs: LocalAccess) -> None:
        self._access = access
        self._runs = runs

    async def declare(
        self,
        type: JobType,
        timeout: float,
        keep: float | None,
        keep_failed: float | None,
        secrets: Sequence[str] | None,
        *,
        may_change: bool,
        may_show: bool,
    ) -> tuple[Declared, Redaction | None]:
        """Make a type where it is missing, and set what its handler declares.

        Args:
            type: of the jobs.
            timeout, keep, keep_failed: seconds; see JobsService.set_type_timeout and set_retention.
            secrets: paths of secret fields; None for no declaration.
            may_change: whether settings of an existing type may change.
            may_show: whether fields may cease to be secret.

        Returns:
            The settings of the type now, and its redaction if one was declared.
        """
        kept = Retention(check_keep("keep", keep), check_keep("keep_failed", keep_failed))
        secret = None if secrets is None else Redaction(secrets)
        wanted = Declared(check_seconds(timeout), kept)
        return await self._runs.declare(
            self._access.keys(type), wanted, secret, may_change=may_change, may_show=may_show
        )

    async def alive(
        self, type: JobType, held: Sequence[tuple[JobId, bytes]], *, renew: bool
    ) -> Sequence[LockStatus | None]:
        """Return the state of each id's lock.

        Args:
            type: of the jobs.
            held: their ids and locks.
            renew: whether this is a heartbeat of the jobs as well.
        """
        places: list[Held] = [(self._access.place(type, id), lock) for id, lock in held]
        if renew:
            return await self._runs.beat(places)
        found, _ = await self._runs.look(self._access.keys(type), places, watched=True)
        return found

    async def healthy(self, type: JobType, id: JobId, lock: bytes) -> RunningJob | Exception:
        """Note that a run is healthy; return the job, or the error of this."""
        place = self._access.place(type, id)
        noted: asyncio.Future[RunningJob | Exception] = asyncio.get_running_loop().create_future()
        self._runs.note_healthy((place, lock), noted.set_result, 0)
        return await noted

    async def end_all(self, type: JobType, ends: Sequence[RunEnd], size: int) -> list[Exception | None]:
        """End several runs, each as if alone; return the error of each, None for a successful one.

        Args:
            type: of the jobs.
            ends: at most so many as fit into a transaction.
            size: bytes of the results and errors.
        """
        asked = [self._call_or_error(type, each) for each in ends]
        calls = [each for each in asked if not isinstance(each, JobsError)]
        done: asyncio.Future[Sequence[Exception | None]] = asyncio.get_running_loop().create_future()

        def ended(errors: Sequence[Exception | None]) -> None:
            if not done.done():
                done.set_result(errors)

        if calls:
            self._access.check_open()
            self._runs.end_all(calls, ended, size + _HEAD * len(calls))
        errors = iter(await done if calls else ())
        return [each if isinstance(each, JobsError) else next(errors) for each in asked]

    async def count_due(self, type: JobType, limit: int, max_priority: Priority | None) -> int:
        """Return how many jobs could run now, up to a limit and a priority."""
        most = None if max_priority is None else pack_priority(max_priority)
        return await self._runs.count_due(self._access.keys(type), limit, most)

    async def tick(
        self,
        type: JobType,
        data: Any,
        schedule: tuple[str, str] | float,
        missed: str,
        overlap: bool,
        timeout: float,
        most: int,
        seen: float | None,
    ) -> AddedTicks:
        """Add the jobs of a periodic handler that are due.

        Args:
            type, data: of the jobs.
            schedule: a cron expression and its time zone, or the seconds of a period.
            missed, overlap: see JobsService.every.
            timeout: the activity timeout of a type that is made, in seconds.
            most: limit of added jobs.
            seen: the last tick that the runner knows; None for none.
        """
        times = Cron(*schedule) if isinstance(schedule, tuple) else Every(schedule)
        handler = elsewhere(type, check_seconds(timeout), data)
        return await self._runs.tick(Periodic(handler, times, Missed(missed), overlap), most, seen)

    def _call_or_error(self, type: JobType, end: RunEnd) -> EndCall | JobsError:
        try:
            return self._call(type, end)
        except JobsError as error:  # an invalid result or error concerns its own run alone
            return error

    def _call(self, type: JobType, end: RunEnd) -> EndCall:
        """Return the operation by which a runner in this process would end the run.

        Raises:
            JobsError: the store cannot hold the result or the error.
        """
        place = self._access.place(type, end.id)
        if end.end == "stop":
            return running_jobs.stop, place, (end.lock, end.run_at, end.max_history, end.reason, end.anew)
        error = None if end.error is None else run_data.error_json(end.error)
        report = RunReport(
            json_of(type, end.id, end.result), error, end.reason, end.max_history, end.crashes, end.attempts
        )
        if end.end == "crash":
            asked = None if end.asked is None else (pack_priority(end.asked[0]), end.asked[1])
            return running_jobs.crash, place, (end.lock, report, end.run_at, asked)
        return running_jobs.finish, place, (end.lock, None, end.outcome, report)
