"""Runs the handlers of an application against a remote server, by the same runner as with a store.

`JobsClient.run` imports it on its first call, as a client that only adds jobs needs no runner.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from jobs_service import json_data, json_types, names
from jobs_service.actors.context import retried
from jobs_service.arguments import ADAPTIVE
from jobs_service.client.connection import LONGEST_PAUSE, MOST_BYTES, MOST_JOBS, of_job, of_type, with_json
from jobs_service.client.worker import RemoteWorker
from jobs_service.errors import JobNotFound, JobsError, StoreError, StoreUnavailable, WorkerConflict, in_one_line
from jobs_service.http import problems, wire
from jobs_service.layer import running_jobs
from jobs_service.layer.batch_bounds import Batch
from jobs_service.layer.keyspace import Keyspace, TypeKeys
from jobs_service.layer.queue import AcceptTerms, EmptyQueue
from jobs_service.layer.running_jobs import LockStatus, RunReport
from jobs_service.layer.type_settings import Declared
from jobs_service.model import UNSET, HistoryKind, JobError, JobType, Outcome, RunningJob, unpack_priority
from jobs_service.model.type_state import Retention
from jobs_service.redaction import Redaction
from jobs_service.runner.heartbeat import BEATS
from jobs_service.runner.run import EndCall, Held
from jobs_service.runner.runner import Runner, log_retention
from jobs_service.runner.schedule import Every
from jobs_service.runner.ticker import AddedTicks, Periodic
from jobs_service.service import JobsService
from jobs_service.service.presence import handlers_to_run
from jobs_service.settings import Settings
from jobs_service.store.base import Watch
from jobs_service.uncancelable import through_cancellation

T = TypeVar("T")

_POLL: Final = 25.0
"""Seconds that the server waits for a change; then the client polls again."""
_TICK_CHECK: Final = 1.0
"""Seconds between two checks whether a tick's job may be added."""
_LONGEST_REASON: Final = 1000
_TOO_LATE: Final = "the runner has ended, and the server has not answered"
_KINDS: Final[Mapping[Callable[..., Awaitable[Any]], set[HistoryKind]]] = {
    running_jobs.finish: {HistoryKind.FINISHED, HistoryKind.CANCELED},
    running_jobs.crash: {HistoryKind.CRASHED, HistoryKind.CANCELED},
    running_jobs.stop: {HistoryKind.STOPPED, HistoryKind.CANCELED},
}
"""The possible newest events of a job after each way of ending its run."""


async def run(
    worker: RemoteWorker,
    jobs: JobsService,
    types: Iterable[JobType] | None,
    max_jobs: int | None,
    started: Callable[[], object] | None,
) -> None:
    """Run handlers until the caller is canceled; arguments and errors as for JobsClient.run."""
    if not isinstance(jobs, JobsService):
        raise JobsError(f"run takes the JobsService that has the handlers, not {in_one_line(repr(jobs), 60)}")
    registry = jobs._registry
    handlers = handlers_to_run(registry, types, max_jobs)
    jobs.reload(jobs.settings)
    periodic = [each for each in registry.periodic if each.handler in handlers]

    def begun() -> None:
        log_retention(handlers, [each.handler for each in periodic])
        if started is not None:
            started()

    service = RemoteAccess(worker, jobs.settings)
    await service.check_allowed(handler.type for handler in handlers)
    runner = Runner(service, handlers, periodic, registry.surroundings(), max_jobs, begun)
    registry.runner = runner
    try:
        await runner.run()
    finally:
        registry.runner = None
        await through_cancellation(service.close())


class RemoteAccess:
    """The remote form of ServiceAccess: each call is a request.

    Args:
        worker: of the client.
        settings: settings of the service with the handlers.
    """

    def __init__(self, worker: RemoteWorker, settings: Settings) -> None:
        self.settings = settings
        self.worker = worker
        self.batch = Batch(MOST_JOBS, MOST_BYTES)
        self._connection = worker.connection
        self.sources = worker.connection.sources
        self.serves_threads = False  # requests are made on the loop
        self._keyspace = Keyspace(b"")
        self.own_runs: dict[bytes, Mapping[bytes, object]] = {}
        self._queues: dict[TypeKeys, str] = {}
        # Seconds between tries of requests that must arrive within the type's timeout.
        self._pauses: dict[TypeKeys, float] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def beat_in_thread(self, held: Sequence[Held], answered: Callable[[list[LockStatus]], object]) -> None:
        raise NotImplementedError

    def keys(self, type: JobType) -> TypeKeys:
        return self._keyspace.of(type)

    async def check_allowed(self, types: Iterable[JobType]) -> None:
        """Wait until the server answers and allows this client to work on jobs of these types.

        Raises:
            AccessDenied: it does not allow it. Raised here, as the supervisor would restart a worker pool on and on.
        """
        for keys in map(self.keys, types):
            await self.retried(lambda keys=keys: self._call("POST", keys, "/alive", {"jobs": []}), type=keys.type)  # type: ignore[misc]

    async def retried(
        self, operation: Callable[[], Awaitable[T]], *, unless: tuple[type[StoreError], ...] = (), **fields: Any
    ) -> T:
        return await retried(self.settings, operation, unless=unless, **fields)

    async def declare(
        self, keys: TypeKeys, wanted: Declared, secret: Redaction | None
    ) -> tuple[Declared, Redaction | None]:
        form = {"timeout": wanted.timeout, **json_types.plain(wanted.retention)}
        form["redact"] = None if secret is None else [*secret.paths]

        def read(form: Any) -> tuple[Declared, Redaction | None]:
            hidden = None if form["redact"] is None else Redaction(form["redact"])
            return Declared(form["timeout"], Retention(form["keep"], form["keep_failed"])), hidden

        return self._connection.read(read, await self._call("POST", keys, "/declare", form))

    # Accepting

    async def accept(self, keys: TypeKeys, terms: AcceptTerms) -> list[RunningJob] | EmptyQueue:
        # Read before the accept: a job that is added after it changes the stamp.
        known = self._queues.get(keys)
        if known is None:
            known = self._queues[keys] = (await self._changed(keys, "queue"))["stamp"]
        form: dict[str, Any] = {"worker": terms.worker, "max_history": terms.max_history}
        form["spread"] = "adaptive" if terms.spread == ADAPTIVE else terms.spread
        if found := await self.worker.accept(keys.type, form, terms.limit, 0.0):
            return found

        async def wait() -> None:
            self._queues[keys] = (await self._changed(keys, "queue", known))["stamp"]

        return EmptyQueue(_RemoteWatch(wait), None)

    def is_crowded(self, keys: TypeKeys) -> bool:
        return False  # conflicts on the store are the server's

    async def count_due(self, keys: TypeKeys, limit: int, max_priority: bytes | None) -> int:
        params = {"limit": str(limit)}
        if max_priority is not None:
            params["max_priority"] = names.shown(unpack_priority(max_priority))
        found = await self._connection.call("GET", of_type(keys.type, "/due"), params=params)
        return self._connection.read(lambda form: int(form["count"]), found)

    # Running jobs

    async def beat(self, held: Sequence[Held]) -> list[LockStatus]:
        return await self._locks(held, renew=True)

    async def look(
        self, keys: TypeKeys, held: Sequence[Held], *, watched: bool
    ) -> tuple[list[LockStatus], list[Watch]]:
        watches = [] if watched else [await self._watch(keys, "canceled")]
        try:
            return await self._locks(held, renew=False), watches
        except BaseException:
            for watch in watches:
                watch.cancel()
            raise

    async def _locks(self, held: Sequence[Held], *, renew: bool) -> list[LockStatus]:
        if not held:
            return []
        keys = held[0][0][0]
        jobs = [{"id": names.name(place[1]), "lock": lock.hex()} for place, lock in held]
        found = await self._call("POST", keys, "/alive", {"jobs": jobs, "renew": renew})
        return self._connection.read(lambda form: [LockStatus(each) for each in form["locks"]], found)

    async def timeout(self, keys: TypeKeys) -> tuple[float | None, Watch]:
        found = await self._changed(keys, "timeout")
        if found["timeout"] is not None:
            self._pauses[keys] = min(found["timeout"] / BEATS / 2, LONGEST_PAUSE)
        return found["timeout"], self._watch_of(keys, "timeout", found["stamp"])

    async def redaction(self, keys: TypeKeys) -> tuple[Redaction, Watch]:
        found = await self._changed(keys, "redaction")
        return Redaction(found["redact"]), self._watch_of(keys, "redaction", found["stamp"])

    # Ends

    def end_all(
        self, calls: Sequence[EndCall], answer: Callable[[Sequence[Exception | None]], None], size: int
    ) -> None:
        async def send() -> None:
            try:
                errors = await self._ended(calls)
            except asyncio.CancelledError:
                answer([StoreUnavailable(_TOO_LATE) for _ in calls])
                raise
            except Exception as error:  # otherwise it would be lost, and the runs would never end
                errors = [copy.copy(error) if isinstance(error, JobsError) else error for _ in calls]
            answer(errors)

        self._send(send())

    def _send(self, request: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(request, name="request of a run")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def note_healthy(self, held: Held, answered: Callable[[RunningJob | Exception], object], size: int) -> None:
        (keys, id, _), lock = held

        async def send() -> None:
            try:
                path = of_job(keys.type, id, "/update")
                found = await self._connection.call("POST", path, {"lock": lock.hex(), "healthy": True})
                job = self._connection.read(lambda form: wire.running_job_of(form, self.worker), found)
            except Exception as error:
                answered(error)
            else:
                answered(job)

        self._send(send())

    async def close(self) -> None:
        """Stop all requests; jobs whose ends have not reached the server count as lost after their type's timeout."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def end(self, call: EndCall) -> None:
        [error] = await self._ended([call])
        if error is not None:
            raise error

    async def _ended(self, calls: Sequence[EndCall]) -> list[Exception | None]:
        """End runs; return the error of each, None for a run that has ended so, now or by an earlier request."""
        body = b'{"jobs":[' + b",".join(map(_end_form, calls)) + b"]}"

        def read(form: Any) -> list[tuple[EndCall, Exception | None]]:
            errors = [None if each is None else problems.error_of(each) for each in form["ends"]]
            return list(zip(calls, errors, strict=True))

        try:
            ends = self._connection.read(read, await self._call("POST", calls[0][1][0], "/ends", body))
        except StoreError:
            raise
        except JobsError as error:  # such as 413 of a proxy: the other runs must end nevertheless
            if len(calls) == 1:
                return [error]
            middle = len(calls) // 2
            return await self._ended(calls[:middle]) + await self._ended(calls[middle:])
        return [
            None if isinstance(error, WorkerConflict) and await self._has_ended(call) else error for call, error in ends
        ]

    async def _has_ended(self, call: EndCall) -> bool:
        """Return whether a run with a lost lock has ended as intended, by an earlier request with a lost answer."""
        operation, (keys, id, _), _ = call
        try:
            job = self._connection.read(wire.job_of, await self._connection.call("GET", of_job(keys.type, id)))
        except JobNotFound:
            return False
        started = next((event for event in job.history if event.kind is HistoryKind.STARTED), None)
        is_own = started is not None and started.detail == self.sources.worker
        return is_own and job.history[0].kind in _KINDS.get(operation, ())

    # Ticks

    async def tick(self, periodic: Periodic, most: int, seen: float | None) -> AddedTicks:
        handler, schedule = periodic.handler, periodic.schedule
        form: dict[str, Any] = (
            {"every": schedule.seconds}
            if isinstance(schedule, Every)
            else {"cron": schedule.expression, "timezone": schedule.timezone}  # type: ignore[attr-defined]
        )
        form |= {
            "missed": periodic.missed.value,
            "overlap": periodic.overlap,
            "timeout": handler.timeout,
            "most": most,
            "seen": seen,
        }
        body = with_json(form, data=json_data.encode(handler.data(UNSET)))
        found = await self._call("POST", self.keys(handler.type), "/tick", body)

        def read(form: Any) -> AddedTicks:
            in_the_way = b"" if form["in_the_way"] else None
            given_up, ahead = form["given_up"], form["ahead"]
            return AddedTicks(form["ids"], form["last"], form["now"], in_the_way, form["dropped"], given_up, ahead)

        return self._connection.read(read, found)

    async def watch_tick(self, periodic: Periodic, key: bytes) -> Watch | None:
        return _RemoteWatch(lambda: asyncio.sleep(_TICK_CHECK))

    # Requests

    async def _call(self, method: str, keys: TypeKeys, verb: str, body: Any) -> Any:
        pause = self._pauses.get(keys, LONGEST_PAUSE)
        path = of_type(keys.type, verb)
        return await self._connection.call(method, path, body, longest_pause=pause)

    async def _changed(self, keys: TypeKeys, of: str, stamp: str | None = None) -> dict[str, Any]:
        """Return the state of a part of a type, once its stamp differs from the known one or the time is over."""
        wait = 0.0 if stamp is None else _POLL
        form = {"of": of, "stamp": stamp, "timeout": wait}
        found = await self._connection.call("POST", of_type(keys.type, "/watch"), form, wait=wait)
        return self._connection.read(dict, found)

    async def _watch(self, keys: TypeKeys, of: str) -> Watch:
        return self._watch_of(keys, of, (await self._changed(keys, of))["stamp"])

    def _watch_of(self, keys: TypeKeys, of: str, stamp: str) -> Watch:
        async def wait() -> None:
            await self._changed(keys, of, stamp)

        return _RemoteWatch(wait)


class _RemoteWatch(Watch):
    """A watch that polls the server while a caller waits.

    Args:
        poll: a coroutine function that returns when there may be a change.
    """

    __slots__ = ("_poll",)

    def __init__(self, poll: Callable[[], Awaitable[object]]) -> None:
        super().__init__(b"")
        self._poll = poll

    async def wait(self) -> None:
        polling = asyncio.ensure_future(self._poll())
        polling.add_done_callback(lambda _: self.fire())
        try:
            await super().wait()
            if polling.done():
                polling.result()
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)


def _end_form(call: EndCall) -> bytes:
    """Return the end of a run as JSON."""
    operation, (_, id, _), (lock, *arguments) = call
    form: dict[str, Any] = {"id": names.name(id), "lock": lock.hex(), "end": operation.__name__}
    if operation is running_jobs.stop:
        run_at, most, reason, anew = arguments
        form |= {"run_at": run_at, "max_history": most, "reason": reason[:_LONGEST_REASON], "anew": anew}
        return json_types.dumps(form)
    report: RunReport
    if operation is running_jobs.crash:
        report, form["run_at"], *asked = arguments
        form["asked"] = wire.next_run(asked[0]) if asked else None
    else:
        outcome: Outcome
        _, outcome, report = arguments
        form["outcome"] = outcome.value
    form |= {"max_history": report.max_history, "crashes": report.crashes, "attempts": report.attempts}
    form["reason"] = report.reason[:_LONGEST_REASON]
    if report.error is not None:
        form["error"] = names.error(JobError(*json_data.decode(report.error)))
    return with_json(form, result=report.result)
