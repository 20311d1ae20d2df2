"""JobsClient: reaches a service in another process, on this machine or another one.

It sends requests as they are given, and the server checks them: a refusal comes back as the same error. The file has
more than 600 lines because all public methods are in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeAlias, TypeVar, overload
from urllib.parse import quote

from jobs_service import json_types, names
from jobs_service.actors import subscriptions
from jobs_service.actors.subscriptions import Subscription, checked_pairs, stop_and_remove
from jobs_service.arguments import (
    MOST_AT_ONCE,
    IfExists,
    Spread,
    check_iterable,
    check_positive,
    check_schedule_name,
    check_seconds,
    check_timeout,
    json_of,
    new_jobs,
)
from jobs_service.client.connection import (
    Connection,
    Lines,
    Lost,
    changes,
    in_parts,
    named,
    of_job,
    of_type,
    segment,
    time,
    with_json,
)
from jobs_service.client.events import RemoteHub, RemoteType
from jobs_service.client.worker import RemoteWorker
from jobs_service.durations import Duration, plain
from jobs_service.errors import (
    InvalidJob,
    JobsError,
    JobTooLarge,
    NoTypeTimeout,
    ProcessGone,
    ServiceClosed,
    StoreUnavailable,
    WorkerConflict,
    a_kind_of,
    kind_of,
    shown,
)
from jobs_service.http import problems, wire
from jobs_service.model import (
    UNSET,
    EndedJob,
    Job,
    JobEvent,
    JobId,
    JobState,
    JobType,
    NewJob,
    Priority,
    ProcessAction,
    ProcessInfo,
    Removal,
    RunAt,
    RunningJob,
)
from jobs_service.model.enqueueing import Enqueueable, How, ResultT, as_enqueue, as_enqueue_many, one_value, unique_key
from jobs_service.model.type_state import Interval, JobsPage, QueueState, Retention, StoredSchedule, TypeCounts
from jobs_service.redaction import Redaction
from jobs_service.sources import Sources

if TYPE_CHECKING:
    import ssl

    import httpx

    from jobs_service.runner.schedule import Missed
    from jobs_service.service import JobsService

T = TypeVar("T")

# Inside a class that has a method `list`, the builtin goes by these names.
_Ids: TypeAlias = list[JobId]
_Jobs: TypeAlias = list[Job]
_RunningJobs: TypeAlias = list[RunningJob]
_Intervals: TypeAlias = list[Interval]
_Types: TypeAlias = list[JobType]
_Processes: TypeAlias = list[ProcessInfo]

_TIMEOUT: Final = 30.0
_LONGEST_POLL: Final = 30.0
"""Seconds that the server waits for jobs; then the client polls again."""


class JobsClient:
    """A JobsService in another process, over HTTP: an async context manager with its operations.

    They have the same arguments, results and errors. `run` runs the handlers of an application. Operations that need
    the store raise JobsError: `transact`, `within`, and `finish_with` of a running job. The network adds two errors:
    StoreUnavailable, if the server cannot be reached or has not answered in time, and AccessDenied. A request whose
    answer is lost is sent again within `timeout`; `remove` and `resubmit` only if the server cannot have begun them.
    Subscriptions, `wait`, `result` and `run` reconnect by themselves, without a time limit.

    Args:
        url: `http://HOST:PORT` or `https://...`, with any prefix, as `jobs-service serve --http` prints it.
        token: as `jobs-service token add` prints it; None for no token, or to find the token of a server that the same
            user has started on this machine.
        timeout: duration after which a call to an unreachable server fails.
        verify: TLS verification: True for the usual certificate authorities, an ssl.SSLContext for others.
        transport: an httpx transport, for Unix sockets or proxies; None for TCP.
        sources: this process's name in the history of its jobs, and randomness; None for the machine's.

    Raises:
        InvalidAddress: the URL is invalid for a server.
        JobsError: httpx is not installed, or an argument is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: Duration = _TIMEOUT,
        verify: bool | ssl.SSLContext = True,
        transport: httpx.AsyncBaseTransport | None = None,
        sources: Sources | None = None,
    ) -> None:
        sources = sources if sources is not None else Sources()
        self._connection = Connection(url, token, check_seconds(timeout), verify, transport, sources)
        self._lines = Lines(self._connection)
        self._worker = RemoteWorker(self._connection)
        self._hub = RemoteHub(self._connection)

    async def __aenter__(self) -> Self:
        await self._connection.open()
        self._hub.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub.close(ServiceClosed("the client was left: it takes nothing new"))
        await self._hub.closed()
        await self._worker.closed()
        await self._connection.close()
        await self._lines.closed()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._connection.url

    # Types

    async def set_type_timeout(self, type: JobType, seconds: Duration) -> None:
        """Create a type, or change its activity timeout; see JobsService.set_type_timeout."""
        await self._connection.call("PUT", of_type(type), {"timeout": check_seconds(seconds)})

    async def get_type_timeout(self, type: JobType) -> float:
        """Return a type's activity timeout in seconds; see JobsService.get_type_timeout."""
        return await self._get(of_type(type), lambda form: float(form["timeout"]))

    async def clear_type_timeout(self, type: JobType) -> None:
        """Remove a type: its jobs stay, new jobs are refused; see JobsService.clear_type_timeout."""
        await self._connection.call("DELETE", of_type(type))

    async def types(self) -> _Types:
        """Return the types that exist, in the tuple layer's order."""
        return await self._get("/v1/types", lambda form: [json_types.name_of(each["type"]) for each in form["types"]])

    async def pause(self, type: JobType) -> None:
        """Stop accepting jobs of a type, in all processes, until `resume`; see JobsService.pause."""
        await self._connection.call("POST", of_type(type, "/pause"))

    async def resume(self, type: JobType) -> None:
        """Accept jobs of a type again; see JobsService.resume."""
        await self._connection.call("POST", of_type(type, "/resume"))

    async def paused(self, type: JobType) -> bool:
        """Return whether a type is paused."""
        return (await self.queue_state(type)).paused

    async def set_retention(
        self, type: JobType, *, keep: Duration | None = None, keep_failed: Duration | None = None
    ) -> None:
        """Set the time until finished jobs of a type are removed; see JobsService.set_retention."""
        await self._connection.call("PUT", of_type(type), {"keep": plain(keep), "keep_failed": plain(keep_failed)})

    async def get_retention(self, type: JobType) -> Retention:
        """Return the retention of a type's finished jobs; see JobsService.get_retention."""
        return await self._get(of_type(type, "/retention"), wire.retention_of)

    async def set_redaction(self, type: JobType, paths: Iterable[str]) -> None:
        """Set the secret fields of a type's jobs; see JobsService.set_redaction."""
        await self._connection.call("PUT", of_type(type, "/redaction"), {"paths": Redaction(paths).paths})

    async def get_redaction(self, type: JobType) -> Redaction:
        """Return the secret fields of a type's jobs; see JobsService.get_redaction."""
        return await self._get(of_type(type, "/redaction"), lambda form: Redaction(form["paths"]))

    async def redactions(self) -> dict[JobType, Redaction]:
        """Return the types with secret fields, and these fields; see JobsService.redactions."""
        return await self._get(
            "/v1/redactions",
            lambda form: {json_types.name_of(each["type"]): Redaction(each["paths"]) for each in form["types"]},
        )

    async def queue_state(self, type: JobType) -> QueueState:
        """Return the state of a type's queue; see JobsService.queue_state."""
        return await self._get(of_type(type, "/queue"), wire.queue_state_of)

    async def last_ticks(self) -> dict[JobType, float]:
        """Return the time of the last tick of each periodic type in the store; see JobsService.last_ticks."""
        return await self._get(
            "/v1/ticks",
            lambda form: {
                json_types.name_of(each["type"]): json_types.seconds_of(each["last"]) or 0.0 for each in form["ticks"]
            },
        )

    @property
    def schedules(self) -> RemoteSchedules:
        """The schedules in the store, which programs and operators change at runtime; see JobsService.schedules."""
        return RemoteSchedules(self)

    # Creating jobs

    async def add(
        self,
        type: JobType,
        id: JobId,
        data: Any = None,
        *,
        priority: Priority = 0,
        run_at: RunAt | None = None,
        if_exists: IfExists = "error",
    ) -> Job:
        """Add a job; see JobsService.add. It is added once, even if an answer is lost and the request is repeated."""
        body = _new_job(type, NewJob(id, data, priority, run_at), {"if_exists": if_exists})
        return self._connection.read(_added_job, await self._lines.send(of_type(type, "/jobs"), body))

    async def add_many(self, type: JobType, jobs: Iterable[NewJob], *, if_exists: IfExists = "error") -> _Jobs:
        """Add jobs of one type, as many per request as the limits allow; see JobsService.add_many.

        Each is added once, even if an answer is lost and the request is repeated.
        """
        added: _Jobs = []
        for part in in_parts(_new_job(type, job, {}) for job in new_jobs(jobs)):
            added += await self._add_together(type, part, if_exists)
        return added

    async def _add_together(self, type: JobType, bodies: list[bytes], rule: IfExists) -> _Jobs:
        """Add jobs in one transaction, or in several if they are too large for one."""
        body = with_json({"if_exists": rule}, jobs=b"[%b]" % b",".join(bodies))
        path, key = of_type(type, "/jobs"), self._connection.new_key()
        try:
            answer = await self._connection.call("POST", path, body, key=key)
        except JobTooLarge as error:
            if error.id is not None or len(bodies) == 1:
                raise
            middle = len(bodies) // 2
            first = await self._add_together(type, bodies[:middle], rule)
            return first + await self._add_together(type, bodies[middle:], rule)
        return self._connection.read(lambda form: [*map(_added_job, form["jobs"])], answer)

    @as_enqueue
    async def enqueue(self, handler: Any, args: Any, arguments: dict[str, Any], how: How) -> Job:
        """Add a job for a handler; see JobsService.enqueue. A missing type is created."""
        wanted = handler if isinstance(handler, Enqueueable) else _Named(handler)
        body = _enqueued(wanted, args, arguments, how)
        path = of_type(wanted.type, "/jobs")
        return self._connection.read(wire.job_of, await self._with_type(wanted, lambda: self._lines.send(path, body)))

    @as_enqueue_many
    async def enqueue_many(self, handler: Any, jobs: Iterable[Any], how: How) -> _Jobs:
        """Add a job for a handler for each element of many arguments; see JobsService.enqueue_many.

        The error of a refused job is raised; the other jobs of the same request are added nevertheless.
        """
        wanted = handler if isinstance(handler, Enqueueable) else _Named(handler)
        path = of_type(wanted.type, "/jobs")
        added: _Jobs = []
        for part in in_parts(_enqueued(wanted, args, {}, how) for args in check_iterable("jobs", jobs)):

            async def ask(part: Sequence[bytes] = part) -> Sequence[Any]:
                found = await self._lines.send_all(path, part)
                for error in found:
                    if isinstance(error, JobsError):
                        raise error
                return found

            added += self._connection.read(lambda forms: [*map(wire.job_of, forms)], await self._with_type(wanted, ask))
        return added

    async def _with_type(self, handler: Enqueueable[Any, Any], ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a request, and create the handler's type if it is missing."""
        try:
            return await ask()
        except NoTypeTimeout:
            if handler.timeout is None:
                raise
        await self.set_type_timeout(handler.type, handler.timeout)
        return await ask()

    async def remove(self, type: JobType, id: JobId, *, force: bool = False) -> Removal:
        """Remove a job, or ask the worker of a running one to finish it; see JobsService.remove."""
        params = {"force": str(force).lower()}
        answer = await self._connection.call("DELETE", of_job(type, id), params=params, repeats=False)
        return self._connection.read(lambda form: Removal(form["removal"]), answer)

    async def stop_and_remove(self, type: JobType, id: JobId, *, timeout: Duration | None) -> None:
        """Remove a job; if it runs, wait until its worker has finished it; see JobsService.stop_and_remove."""
        await stop_and_remove(self.remove, self._not_running, type, id, timeout)

    async def _not_running(self, type: JobType, id: JobId) -> None:
        async with self.subscribe(type, id) as events:
            async for event in events:
                if event.state is not JobState.RUNNING:
                    return

    async def resubmit(
        self, type: JobType, id: JobId, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> Job:
        """Run a job again; a running one after its present run; see JobsService.resubmit."""
        body = changes({}, type, id, data, priority, run_at)
        answer = await self._connection.call("POST", of_job(type, id, "/resubmit"), body, repeats=False)
        return self._connection.read(wire.job_of, answer)

    # Reading jobs

    async def get(self, type: JobType, id: JobId) -> Job:
        """Return a job without its secret fields, unless this client runs the job; see JobsService.get."""
        path = of_job(type, id)
        if (lock := self._worker.locks.get(path)) is not None:
            try:
                return await self._get(path, wire.job_of, lock=lock)
            except WorkerConflict:  # it has ended, or was lost
                self._worker.locks.pop(path, None)
        return await self._get(path, wire.job_of)

    async def list(
        self, type: JobType | None = None, *, state: JobState | str | None = None, page_size: int = 1000
    ) -> AsyncGenerator[Job, None]:
        """Yield jobs in key order while the server reads them; see JobsService.list.

        Args:
            type, state: as for JobsService.list.
            page_size: without effect, as the server chooses its page size.

        Raises:
            StoreUnavailable: the connection was lost; the jobs until then are valid.
        """
        path = "/v1/jobs" if type is None else of_type(type, "/jobs")
        params = {} if state is None else {"state": str(state)}
        headers = {"Accept": "application/x-ndjson"}
        try:
            async with self._connection.stream("GET", path, params=params, headers=headers) as chunks:
                rest = b""
                if chunks is not None:
                    async for chunk in chunks:
                        *lines, rest = (rest + chunk).split(b"\n")
                        for line in filter(None, lines):
                            yield self._connection.read(lambda line: _job_of(json_types.loads(line)), line)
                if rest:
                    raise StoreUnavailable(f"{self.url} has ended a list within a job")
        except Lost as lost:
            raise lost.error from None

    async def page(
        self,
        type: JobType,
        *,
        state: JobState | str | None = None,
        limit: int = 100,
        after: str | None = None,
        newest_first: bool = False,
        prefix: JobId | None = None,
    ) -> JobsPage:
        """Return a page of a type's jobs; see JobsService.page."""
        left = check_positive("limit", limit)
        shown_prefix = None if prefix is None else named(prefix, names.shown)
        params = {"state": state, "newest_first": newest_first or None, "prefix": shown_prefix}
        jobs: _Jobs = []
        while True:  # a server gives no more at once
            most = min(left, MOST_AT_ONCE)
            page = await self._get(of_type(type, "/jobs"), wire.jobs_page_of, **params, limit=most, after=after)
            jobs += page.jobs
            left -= len(page.jobs)
            after = page.next
            if after is None or len(page.jobs) < MOST_AT_ONCE or not left:
                return JobsPage(jobs, after)

    async def active_ids(self, type: JobType) -> _Ids:
        """Return the ids of the type's running jobs, the longest silent first."""
        return await self._get(of_type(type, "/active"), lambda form: [*map(json_types.name_of, form["ids"])])

    async def oldest_ready(self, type: JobType) -> Job | None:
        """Return the longest ready job of a type; None without ready jobs."""
        return await self._get(
            of_type(type, "/oldest"), lambda form: None if form["job"] is None else wire.job_of(form["job"])
        )

    async def pending_count(self, type: JobType, *, due_by: RunAt | None = None, limit: int | None = None) -> int:
        """Return the number of pending jobs of a type; see JobsService.pending_count."""
        path = of_type(type, "/pending")
        return await self._get(path, lambda form: int(form["count"]), due_by=time(due_by), limit=limit)

    async def counts(self, type: JobType | None = None) -> dict[JobType, TypeCounts]:
        """Return the counts of types; see JobsService.counts."""
        return await self._get(
            "/v1/counts",
            lambda form: {json_types.name_of(each["type"]): wire.counts_of(each) for each in form["types"]},
            type=None if type is None else named(type, names.shown),
        )

    async def throughput(
        self, type: JobType, *, since: RunAt, until: RunAt | None = None, resolution: str = "minute"
    ) -> _Intervals:
        """Return the events of a type's jobs by minute or by hour; see JobsService.throughput."""
        return await self._get(
            of_type(type, "/throughput"),
            lambda form: [*map(wire.interval_of, form["intervals"])],
            since=time(since),
            until=time(until),
            resolution=resolution,
        )

    async def supervision(self) -> dict[str, Any]:
        """Return the server's supervisor tree as plain data; see JobsService.supervision, which is no coroutine."""
        return await self._get("/v1/supervision", dict)

    async def _get(self, path: str, read: Callable[[Any], T], **params: Any) -> T:
        """Return the decoded answer to a read; parameters that are None are left out."""
        said = {name: _text(value) for name, value in params.items() if value is not None}
        return self._connection.read(read, await self._connection.call("GET", path, params=said))

    # Waiting for jobs

    def subscribe(self, type: JobType, id: JobId) -> Subscription:
        """Return the events of a job: an async iterator, which `async with` closes at its end; see JobsService."""
        return self.subscribe_many([(type, id)])

    def subscribe_many(self, jobs: Iterable[tuple[JobType, JobId]]) -> Subscription:
        """Return the events of several jobs as one iterator; see JobsService.subscribe_many."""
        self._connection.check_open()
        wanted: dict[str, tuple[Any, JobId]] = {}
        for type, id in checked_pairs(jobs):
            if not isinstance(id, str | bytes):  # of the jobs of one stream the server would refuse all
                raise InvalidJob(f"id {shown(id)}: {a_kind_of(id)}; allowed are str and bytes").about(type)
            wanted[of_job(type, id)] = RemoteType(segment(type), type), id
        return Subscription(self._hub, [*wanted.values()])

    async def wait(
        self, type: JobType, id: JobId, *states: JobState | str, timeout: Duration | None = None
    ) -> JobEvent:
        """Wait until a job is in one of these states, or for its next change; see JobsService.wait."""
        return await subscriptions.wait(self.subscribe, type, id, states, timeout)

    @overload
    async def result(
        self, type: Enqueueable[Any, EndedJob[ResultT]], id: JobId, *, timeout: Duration | None = None
    ) -> ResultT: ...

    @overload
    async def result(
        self, type: Enqueueable[Any, ResultT | EndedJob[ResultT]], id: JobId, *, timeout: Duration | None = None
    ) -> ResultT: ...

    @overload
    async def result(self, type: JobType, id: JobId, *, timeout: Duration | None = None) -> Any: ...

    async def result(self, type: Any, id: JobId, *, timeout: Duration | None = None) -> Any:
        """Wait until a job has finished, and return its result; see JobsService.result."""
        return await subscriptions.result(self.subscribe, type, id, timeout)

    # Working

    async def accept(
        self,
        type: JobType,
        *,
        max_priority: Priority | None = None,
        due_by: RunAt | None = None,
        timeout: Duration | None = None,
        spread: Spread = 1,
    ) -> RunningJob | None:
        """Take the due job at the front of the queue; see JobsService.accept.

        A job that arrives after the caller was canceled is given back, and a lost answer is requested again. If the
        server restarts in between, the job counts as running until its type's timeout.
        """
        jobs = await self.accept_many(type, 1, max_priority=max_priority, due_by=due_by, timeout=timeout, spread=spread)
        return jobs[0] if jobs else None

    async def accept_many(
        self,
        type: JobType,
        limit: int,
        *,
        max_priority: Priority | None = None,
        due_by: RunAt | None = None,
        timeout: Duration | None = None,
        spread: Spread = 1,
    ) -> _RunningJobs:
        """Take up to `limit` jobs from the front of the queue; see JobsService.accept_many, and `accept`."""
        most, seconds = check_positive("limit", limit), check_timeout(timeout)
        form = {"spread": spread, "worker": self._connection.sources.worker, "due_by": time(due_by)}
        form["max_priority"] = None if max_priority is None else named(max_priority)
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        while True:
            left = _LONGEST_POLL if deadline is None else min(max(deadline - loop.time(), 0.0), _LONGEST_POLL)
            jobs = await self._worker.accept(type, form, most, left)
            if jobs or (deadline is not None and loop.time() >= deadline):
                return jobs

    async def run(
        self,
        jobs: JobsService,
        *,
        types: Iterable[JobType] | None = None,
        max_jobs: int | None = None,
        started: Callable[[], object] | None = None,
    ) -> None:
        """Run the handlers of an application with the server's jobs until the caller is canceled.

        Retries, heartbeats, progress, turns and the end with its grace are those of JobsService.run. While the server
        is away, handlers go on; their outcomes are sent when it is back. The token needs the role work, and for
        periodic handlers, which add jobs, the role write. Opens the client if it is not open.

        Args:
            jobs: the service with the handlers; it need not be open, and its store is not used.
            types, max_jobs, started: as for JobsService.run.

        Raises:
            InvalidSettings, SupervisorFailed, JobsError: as JobsService.run.
            AccessDenied: the token does not allow it.
        """
        if not self._connection.is_open:
            async with self:
                return await self.run(jobs, types=types, max_jobs=max_jobs, started=started)
        runs = import_module("jobs_service.client.runs")  # with the runner, which other clients do not need
        await runs.run(self._worker, jobs, types, max_jobs, started)

    async def transact(self, function: Any) -> NoReturn:
        """Raise JobsError: a transaction needs the store itself."""
        raise _needs_the_store("transact")

    def within(self, transaction: object) -> NoReturn:
        """Raise JobsError: a transaction needs the store itself."""
        raise _needs_the_store("within")

    # Processes

    async def processes(self) -> _Processes:
        """Return the processes that run handlers or are daemons; see JobsService.processes."""
        return await self._get("/v1/processes", lambda form: [*map(wire.process_of, form["processes"])])

    async def quiet_process(self, id: str) -> ProcessInfo:
        """Have a process take no more jobs; see JobsService.quiet_process."""
        return await self._ask_process(id, ProcessAction.QUIET)

    async def resume_process(self, id: str) -> ProcessInfo:
        """Have a quiet process take jobs again; see JobsService.resume_process."""
        return await self._ask_process(id, ProcessAction.RESUME)

    async def stop_process(self, id: str) -> ProcessInfo:
        """Have a process end, as on SIGTERM; see JobsService.stop_process."""
        return await self._ask_process(id, ProcessAction.STOP)

    async def _ask_process(self, id: Any, action: ProcessAction) -> ProcessInfo:
        if not isinstance(id, str) or not id.isalnum():
            raise ProcessGone(f"there is no process {shown(id)}")
        found = await self._connection.call("POST", f"/v1/processes/{quote(id, safe='')}/{action.value}")
        return self._connection.read(wire.process_of, found)


class RemoteSchedules:
    """The schedules in the server's store: the operations of JobsService.schedules, with its arguments and results.

    The secrets of a schedule's data are not shown.

    Args:
        client: whose server it is.
    """

    def __init__(self, client: JobsClient) -> None:
        self._client = client

    async def set(
        self,
        name: str,
        handler: Enqueueable[Any, Any] | JobType,
        args: Any = UNSET,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        missed: Missed | str = "once",
        overlap: bool = False,
    ) -> StoredSchedule:
        """Make a schedule, or change the one of this name. A missing type of a handler is created."""
        wanted = handler if isinstance(handler, Enqueueable) else _Named(handler)
        times = {"every": plain(every), "cron": cron, "timezone": timezone}
        form = {"type": named(wanted.type), **times, "missed": str(missed), "overlap": overlap}
        body = with_json(form, data=json_of(wanted.type, name, wanted.data(args)))
        path = _schedule(name)
        return await self._client._with_type(wanted, lambda: self._answer("PUT", path, body))

    async def get(self, name: str) -> StoredSchedule:
        """Return a schedule. Raises ScheduleNotFound: there is none of this name."""
        return await self._answer("GET", _schedule(name))

    async def list(self) -> Sequence[StoredSchedule]:
        """Return all schedules in the order of their names."""
        return await self._client._get("/v1/schedules", lambda form: [*map(wire.schedule_of, form["schedules"])])

    async def remove(self, name: str) -> None:
        """Remove a schedule; the jobs that it has added stay. Raises like `get`."""
        await self._client._connection.call("DELETE", _schedule(name), repeats=False)

    async def pause(self, name: str) -> StoredSchedule:
        """Hold up the ticks of a schedule until `resume`. Raises like `get`."""
        return await self._answer("POST", _schedule(name, "/pause"))

    async def resume(self, name: str) -> StoredSchedule:
        """Let the ticks of a schedule come again. Raises like `get`."""
        return await self._answer("POST", _schedule(name, "/resume"))

    async def _answer(self, method: str, path: str, body: bytes | None = None) -> StoredSchedule:
        connection = self._client._connection
        return connection.read(wire.schedule_of, await connection.call(method, path, body))


def _schedule(name: Any, rest: str = "") -> str:
    """Return the path of a schedule. Raises InvalidJob: an invalid name."""
    return f"/v1/schedules/{quote(check_schedule_name(name), safe='')}{rest}"


class _Named(Enqueueable[Any, Any]):
    """A handler that is given by its type only; the server may know it."""

    takes_keywords = True
    timeout = None

    def __init__(self, type: Any) -> None:
        self.type = type
        self.name = f"type {shown(type)}"

    def data(self, args: Any) -> Any:
        """Return the data of a job unchanged."""
        return args


def _new_job(type: JobType, job: NewJob, options: dict[str, Any]) -> bytes:
    """Return the request for a new job.

    Raises:
        InvalidJob, JobTooLarge: JSON cannot carry it.
    """
    if not isinstance(job, NewJob):
        raise InvalidJob(f"a job of type {kind_of(job)}; add_many takes NewJob objects").about(type)
    form = {"id": named(job.id), "priority": named(job.priority), "run_at": time(job.run_at), **options}
    return with_json(form, data=json_of(type, job.id, job.data))


def _enqueued(handler: Enqueueable[Any, Any], args: Any, arguments: dict[str, Any], how: How) -> bytes:
    """Return the request for one job of a handler. Raises like `_new_job`, and if the arguments are no handler's."""
    data = handler.data(one_value(handler, args, arguments))
    delay, run_at, unique = how.delay, how.run_at, None if how.unique is False else how.unique
    if delay is None and isinstance(run_at, timedelta):  # by the server's clock
        delay, run_at = run_at, None
    if unique is True and not isinstance(handler, _Named):
        # Equal arguments are recognized by the handler's defaults, which are known beside the handler only.
        unique = unique_key(handler, data, True)
    options = {
        "id": None if how.id is None else named(how.id),
        "run_at": time(run_at),
        "delay": plain(delay),
        "unique": unique,
        "unique_for": plain(how.unique_for),
        "max_attempts": how.max_attempts,
        "time_limit": plain(how.time_limit),
        "if_exists": how.if_exists,
        # Nothing secret is shown before the handler starts for the first time.
        "redact": None if handler.redaction is None else handler.redaction.paths,
    }
    form = {name: value for name, value in options.items() if value is not None}
    return with_json({"priority": named(how.priority), **form}, data=json_of(handler.type, how.id, data))


def _job_of(form: Any) -> Job:
    """Return the job in a line of an answer; raise the error of a line that reports one."""
    if "problem" in form:
        raise problems.error_of(form["problem"])
    return wire.job_of(form)


def _added_job(form: Any) -> Job:
    """Return the job in an answer to `add`, which does not tell whether the job existed before."""
    job = wire.job_of(form)
    job._enqueued = None
    return job


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _needs_the_store(what: str) -> JobsError:
    return JobsError(f"{what} needs the store itself, which a client does not have: use a JobsService beside the store")
