"""The operations of services as plain methods: for scripts, threads, Flask, Django, notebooks and plain handlers.

Each method is made of the asyncio one, which runs on an event loop: where the service is open, or else in the thread
that this module starts for all services of the process, and ends with the last of them.

The module has more than 600 lines because services and clients have most of their operations from one class.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeAlias, TypeVar, cast, overload

import structlog
from anyio.from_thread import start_blocking_portal

from jobs_service import tracing
from jobs_service.actors import subscriptions
from jobs_service.arguments import IfExists
from jobs_service.blocking import LoopCalls, running_loop
from jobs_service.client import JobsClient as AsyncJobsClient
from jobs_service.durations import Duration
from jobs_service.errors import JobsError, ServiceClosed
from jobs_service.layer.record import job_of
from jobs_service.layer.transaction import JobTransaction as AsyncJobTransaction
from jobs_service.layer.transaction import PlainJobTransaction as JobTransaction
from jobs_service.layer.transaction import either
from jobs_service.model import EndedJob, Job, JobEvent, JobId, JobState, JobType, Priority, RunAt, RunningJob
from jobs_service.model.enqueueing import Enqueue, Enqueueable, EnqueueMany, ResultT
from jobs_service.runner.functions import BlockingJob
from jobs_service.runner.handler import Handler
from jobs_service.runner.ticker import Periodic
from jobs_service.service import JobsService as AsyncJobsService
from jobs_service.service.schedules import Schedules as AsyncSchedules
from jobs_service.service.transactions import WithinTransaction
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store import Store

if TYPE_CHECKING:
    import ssl

    import httpx

__all__ = ["BlockingJob", "JobTransaction", "JobsClient", "JobsService", "Schedules", "Subscription"]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
ServiceT = TypeVar("ServiceT", bound=AsyncJobsService | AsyncJobsClient)

# Inside a class that has a method `list`, the builtin goes by this name.
_Jobs: TypeAlias = list[Job]

_LISTED_AT_ONCE: Final = 100
"""Jobs of a list that one call takes from the loop."""
_LONGEST_END: Final = 10.0
"""Seconds that the end of the program waits for services to close: a store that does not answer must not keep it."""
_LONGEST_OUTPUT: Final = 1.0
"""Seconds that a fork waits for a line of the log that another thread writes."""


# The thread


class _Portal:
    """The thread with an event loop for all services that are open in no other one: it is there while one needs it.

    Attributes:
        faces: all of the process.
    """

    def __init__(self) -> None:
        self.faces: weakref.WeakSet[_Face[Any]] = weakref.WeakSet()
        self._changing = threading.Lock()
        self._users = 0
        self._is_over = False
        self._forking = threading.local()  # several threads may fork at once
        atexit.register(self._at_exit)
        os.register_at_fork(before=self._hold_output, after_in_parent=self._leave_output, after_in_child=self._in_child)

    def enter(self) -> LoopCalls:
        """Return the calls to the loop; the caller calls `leave` when it needs it no more."""
        with self._changing:
            if self._is_over:
                raise ServiceClosed("the program is ending: nothing is opened any more")
            if not self._users:
                self._thread = start_blocking_portal("asyncio")
                loop = self._thread.__enter__().call(asyncio.get_running_loop)
                self._calls = LoopCalls(loop, _undo)
            self._users += 1
            return self._calls

    def leave(self) -> None:
        """Do not need it any more; the last one ends the thread."""
        with self._changing:
            self._users -= 1
            if not self._users:
                self._thread.__exit__(None, None, None)

    def _at_exit(self) -> None:
        self._is_over = True
        deadline = monotonic() + _LONGEST_END
        for face in [*self.faces]:
            face._close(deadline)

    def _hold_output(self) -> None:
        # A fork while the thread logs would leave a lock of structlog's output held in the child, for ever. (The
        # standard library's logging sees to that itself.)
        locks = getattr(structlog._output, "WRITE_LOCKS", {})
        self._forking.held = [lock for lock in [*locks.values()] if lock.acquire(timeout=_LONGEST_OUTPUT)]

    def _leave_output(self) -> None:
        for lock in self._forking.held:
            lock.release()

    def _in_child(self) -> None:
        """Begin anew: the thread is the parent's."""
        self._leave_output()
        kept: list[Any] = [before for face in [*self.faces] if (before := face._begin_anew()) is not None]
        self._changing = threading.Lock()
        if self._users:
            self._users = 0
            kept += self._thread, self._calls, *asyncio.all_tasks(self._calls.loop)
        if kept:
            # The parent's tasks are in the midst of something; nothing may end them here, not even this process's end.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


@functools.cache
def _portal() -> _Portal:
    return _Portal()


async def _undo(result: Any) -> None:
    """Give back accepted jobs whose caller has gone."""
    for job in result if isinstance(result, list) else [result]:
        if isinstance(job, RunningJob):
            with contextlib.suppress(JobsError):
                await job.release()


# Methods


def _plain(operation: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Turn a coroutine method of the asyncio service, or of its schedules, into a plain one."""
    name = operation.__name__

    @functools.wraps(operation)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._where().call(getattr(self._service, name), args, kwargs)
        return result

    return method


def _until_closed(
    operation: Callable[Concatenate[S, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[_Face[Any], P], None]:
    """Turn a coroutine method that goes on for ever into a plain one that returns when the service is closed."""
    plain = _plain(operation)

    @functools.wraps(operation)
    def method(self: _Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        with contextlib.suppress(ServiceClosed):
            plain(self, *args, **kwargs)

    return method


def _accepting(
    operation: Callable[Concatenate[S, P], Coroutine[Any, Any, RunningJob | None]],
) -> Callable[Concatenate[_Face[Any], P], BlockingJob | None]:
    plain = _plain(operation)

    @functools.wraps(operation)
    def method(self: _Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> BlockingJob | None:
        job = plain(self, *args, **kwargs)
        return None if job is None else BlockingJob(job, self._where())

    return method


def _accepting_many(
    operation: Callable[Concatenate[S, P], Coroutine[Any, Any, list[RunningJob]]],
) -> Callable[Concatenate[_Face[Any], P], list[BlockingJob]]:
    plain = _plain(operation)

    @functools.wraps(operation)
    def method(self: _Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> list[BlockingJob]:
        jobs = plain(self, *args, **kwargs)
        return [BlockingJob(job, self._where()) for job in jobs]

    return method


def _same(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Face[Any], P], T]:
    """Take over a method that is plain already; while the service is open, it runs on its loop."""
    name = method.__name__

    @functools.wraps(method)
    def same(self: _Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        function = getattr(self._service, name)

        async def on_loop() -> T:
            result: T = function(*args, **kwargs)
            return result

        loop, calls = self._loop(), self._calls
        if loop is None or calls is None or calls.loop is not loop or running_loop() is loop:
            result: T = function(*args, **kwargs)
            return result
        return calls.call(on_loop)

    return same


def _reading(method: Callable[P, T]) -> Callable[P, T]:
    """Have a method read iterables in the calling thread: a query of Django, for one, must not be run on a loop."""

    @functools.wraps(method)
    def reading(*args: P.args, **kwargs: P.kwargs) -> T:
        read: Any = functools.partial(method, *map(_read, args))
        result: T = read(**{name: _read(value) for name, value in kwargs.items()})
        return result

    return reading


def _read(value: Any) -> Any:
    return [*value] if isinstance(value, Iterable) and not isinstance(value, str | bytes | tuple) else value


class Schedules:
    """The schedules in the store: the operations of `schedules` of the asyncio service or client as plain methods."""

    def __init__(self, face: _Face[Any]) -> None:
        self._face = face
        self._where = face._where

    @property
    def _service(self) -> Any:
        return self._face._service.schedules  # after a fork another one

    set = _plain(AsyncSchedules.set)
    get = _plain(AsyncSchedules.get)
    remove = _plain(AsyncSchedules.remove)
    pause = _plain(AsyncSchedules.pause)
    resume = _plain(AsyncSchedules.resume)
    list = _plain(AsyncSchedules.list)


class _Face(Generic[ServiceT]):
    """The operations that services and clients have in common; where they run, and opening and closing.

    Args:
        service: the asyncio service or client.
    """

    def __init__(self, service: ServiceT) -> None:
        self._service: ServiceT = service
        self._opening = threading.Lock()
        # The calls to the loop where it is open, as far as this object knows.
        self._calls: LoopCalls | None = None
        # While it is open in the portal: the events that tell it to leave, and that it has left.
        self._held: tuple[asyncio.Event, threading.Event] | None = None
        _portal().faces.add(self)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Open the service, as the first operation would; an open one stays so."""
        self._where()

    def close(self) -> None:
        """Close the service, as the end of the program would: operations that have begun end, waiting ones raise.

        The next operation opens it again. A service that was opened elsewhere, by `async with`, stays open.
        """
        self._close(None)

    # Types

    set_type_timeout = _plain(AsyncJobsService.set_type_timeout)
    get_type_timeout = _plain(AsyncJobsService.get_type_timeout)
    clear_type_timeout = _plain(AsyncJobsService.clear_type_timeout)
    types = _plain(AsyncJobsService.types)
    pause = _plain(AsyncJobsService.pause)
    resume = _plain(AsyncJobsService.resume)
    paused = _plain(AsyncJobsService.paused)
    set_retention = _plain(AsyncJobsService.set_retention)
    get_retention = _plain(AsyncJobsService.get_retention)
    set_redaction = _reading(_plain(AsyncJobsService.set_redaction))
    get_redaction = _plain(AsyncJobsService.get_redaction)
    redactions = _plain(AsyncJobsService.redactions)
    queue_state = _plain(AsyncJobsService.queue_state)
    last_ticks = _plain(AsyncJobsService.last_ticks)

    @property
    def schedules(self) -> Schedules:
        """The schedules in the store, which programs and operators change at runtime."""
        return Schedules(self)

    # Creating jobs

    add = _plain(AsyncJobsService.add)
    add_many = _reading(_plain(AsyncJobsService.add_many))
    enqueue = cast(Enqueue[Job], _plain(cast(Any, AsyncJobsService.enqueue)))
    enqueue_many = cast(EnqueueMany[_Jobs], _reading(_plain(cast(Any, AsyncJobsService.enqueue_many))))
    resubmit = _plain(AsyncJobsService.resubmit)
    remove = _plain(AsyncJobsService.remove)
    stop_and_remove = _plain(AsyncJobsService.stop_and_remove)

    # Reading jobs

    get = _plain(AsyncJobsService.get)
    active_ids = _plain(AsyncJobsService.active_ids)
    pending_count = _plain(AsyncJobsService.pending_count)
    oldest_ready = _plain(AsyncJobsService.oldest_ready)
    counts = _plain(AsyncJobsService.counts)
    throughput = _plain(AsyncJobsService.throughput)

    # Waiting for jobs

    wait = _plain(AsyncJobsService.wait)

    def subscribe(self, type: JobType, id: JobId) -> Subscription:
        """Return the events of a job: an iterator, which `with` closes at its end; see JobsService.subscribe."""
        return self.subscribe_many([(type, id)])

    def subscribe_many(self, jobs: Iterable[tuple[JobType, JobId]]) -> Subscription:
        """Return the events of several jobs as one iterator; see JobsService.subscribe_many."""

        async def begin() -> subscriptions.Subscription:
            return await self._service.subscribe_many(read).__aenter__()

        read = _read(jobs)
        calls = self._where()
        return Subscription(calls, calls.call(begin))

    @overload
    def result(
        self, type: Enqueueable[Any, EndedJob[ResultT]], id: JobId, *, timeout: Duration | None = None
    ) -> ResultT: ...

    @overload
    def result(
        self, type: Enqueueable[Any, ResultT | EndedJob[ResultT]], id: JobId, *, timeout: Duration | None = None
    ) -> ResultT: ...

    @overload
    def result(self, type: JobType, id: JobId, *, timeout: Duration | None = None) -> Any: ...

    def result(self, type: Any, id: JobId, *, timeout: Duration | None = None) -> Any:
        """Wait until a job has finished, and return its result; see JobsService.result."""
        return self._where().call(self._service.result, (type, id), {"timeout": timeout})

    # Working

    accept = _accepting(AsyncJobsService.accept)
    accept_many = _accepting_many(AsyncJobsService.accept_many)

    # Processes

    processes = _plain(AsyncJobsService.processes)
    quiet_process = _plain(AsyncJobsService.quiet_process)
    resume_process = _plain(AsyncJobsService.resume_process)
    stop_process = _plain(AsyncJobsService.stop_process)

    # Opening and closing

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop on which the service is open; None if it is not open."""
        raise NotImplementedError

    def _where(self) -> LoopCalls:
        """Return the calls to the loop on which the service is open; open it if it is not."""
        calls = self._calls
        return calls if calls is not None and calls.loop is self._loop() else self._open()

    def _open(self) -> LoopCalls:
        with self._opening:
            loop, calls = self._loop(), self._calls
            if loop is not None and (calls is None or calls.loop is not loop):
                self._calls = calls = LoopCalls(loop, _undo)
            elif loop is None or calls is None:
                self._let_go()  # it has failed since
                calls = _portal().enter()
                leaving, left = asyncio.Event(), threading.Event()
                self._held = leaving, left
                try:
                    calls.call(self._enter, (leaving, left))
                except BaseException:
                    self._let_go()
                    raise
                self._calls = calls
            return calls

    async def _enter(self, leaving: asyncio.Event, left: threading.Event) -> None:
        loop = asyncio.get_running_loop()
        opened = loop.create_future()
        # Not in the context of this call, such as its trace: the service is for all.
        host = loop.create_task(self._host(opened, leaving, left), context=contextvars.Context())
        try:
            await opened
        except asyncio.CancelledError:
            host.cancel()
            await asyncio.wait([host])
            raise

    async def _host(self, opened: asyncio.Future[None], leaving: asyncio.Event, left: threading.Event) -> None:
        """Keep the service open; when it fails, it is not open any more, and its callers have got the error."""
        try:
            async with self._service:
                if not opened.done():
                    opened.set_result(None)
                    await leaving.wait()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
        finally:
            left.set()

    def _close(self, deadline: float | None) -> None:
        """Close it; give up at a time of the monotonic clock."""
        with self._opening:
            if self._held is None or self._calls is None:
                return
            if running_loop() is self._calls.loop:
                raise JobsError("close() was called on the event loop that it would have to wait for")
            leaving, left = self._held
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._calls.loop.call_soon_threadsafe(leaving.set)
            if left.wait(None if deadline is None else max(deadline - monotonic(), 0.0)):
                self._let_go()

    def _let_go(self) -> None:
        """Need the portal no more."""
        self._calls = None
        if self._held is not None:
            self._held = None
            _portal().leave()

    async def _give_up(self) -> None:
        """Close it in the portal, because it is to be opened on the running loop; operations follow it there."""
        await asyncio.to_thread(self.close)

    def _begin_anew(self) -> object:
        """Be closed, in a forked child; return what belongs to the parent and must stay as it is, None for nothing."""
        self._opening = threading.Lock()
        if self._loop() is None and self._held is None:
            return None
        before = self._calls, self._held, self._make_anew()
        self._calls = self._held = None
        return before

    def _make_anew(self) -> object:
        """Make the service anew; return its parts before."""
        raise NotImplementedError

    # The last one hides the builtin `list`

    def list(
        self, type: JobType | None = None, *, state: JobState | str | None = None, page_size: int = 1000
    ) -> Iterator[Job]:
        """Yield any number of jobs in key order; see JobsService.list."""
        calls = self._where()
        jobs = self._service.list(type, state=state, page_size=page_size)

        async def some() -> _Jobs:
            found: _Jobs = []
            async for job in jobs:
                found.append(job)
                if len(found) == _LISTED_AT_ONCE:
                    break
            return found

        async def close() -> None:
            await jobs.aclose()

        try:
            while part := calls.call(some):
                yield from part
        finally:
            with contextlib.suppress(JobsError):
                calls.call(close)


class Subscription:
    """The events of one job, or of several: an iterator, and a context manager that ends it at once.

    Raises while iterating as the asyncio one, jobs_service.Subscription.
    """

    def __init__(self, calls: LoopCalls, subscription: subscriptions.Subscription) -> None:
        self._calls = calls
        self._subscription = subscription

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> JobEvent:
        event = self._calls.call(self._next)
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription; an iterator ends after the present events."""

        async def close() -> None:
            self._subscription.close()

        with contextlib.suppress(ServiceClosed):
            self._calls.call(close)

    async def _next(self) -> JobEvent | None:
        return await anext(self._subscription, None)


class JobsService(_Face[AsyncJobsService]):
    """Durable background jobs: the operations of jobs_service.JobsService as plain methods, for any number of threads.

    They have the same arguments, results and errors. The service is opened by its first operation, and closed at the
    end of the program, or by `close` or `with`. A forked child opens it anew. An operation that is interrupted, by
    Ctrl-C, is canceled. Operations wait, so they are not for the thread of the event loop on which the service is open.

    Args:
        store: an address, a Store or None, as for the asyncio service; or such a service, whose operations these are
            then: they run where it is open, or it is opened for them.
        settings, supervise, sources: as for the asyncio service.

    Raises:
        As the asyncio service.
    """

    def __init__(
        self,
        store: str | Store | AsyncJobsService | None = None,
        *,
        settings: Settings | None = None,
        supervise: bool = True,
        sources: Sources | None = None,
    ) -> None:
        if not isinstance(store, AsyncJobsService):
            store = AsyncJobsService(store, settings=settings, supervise=supervise, sources=sources)
        super().__init__(store)

    @property
    def asynchronous(self) -> AsyncJobsService:
        """The same service for coroutines: opened by `async with`, it is open there for both."""
        return self._service

    def add(
        self,
        type: JobType,
        id: JobId,
        data: Any = None,
        *,
        priority: Priority = 0,
        run_at: RunAt | None = None,
        if_exists: IfExists = "error",
    ) -> Job:
        """Add a job; see JobsService.add."""
        calls, creator = self._where(), self._service._creator
        with tracing.sending("add", type, id):
            return job_of(
                calls.operate(
                    lambda answer: creator.adding(answer, type, id, data, priority, run_at, if_exists),
                    creator.begin,
                    one_after_the_other=not self._service.store.overlaps,
                )
            )

    page = _plain(AsyncJobsService.page)
    type_settings = _reading(_plain(AsyncJobsService.type_settings))
    queue_states = _reading(_plain(AsyncJobsService.queue_states))

    @overload
    def transact(self, function: Callable[[AsyncJobTransaction], Coroutine[Any, Any, T]]) -> T: ...

    @overload
    def transact(self, function: Callable[[JobTransaction], T]) -> T: ...

    def transact(self, function: Callable[[Any], Any]) -> Any:
        """Run a function in one transaction; see JobsService.transact.

        Args:
            function: a plain function, which takes a JobTransaction of this module, or a coroutine function; may be run
                more than once, and must have no other effects.
        """
        return self._where().call(self._service.transact, (either(function) if callable(function) else function,))

    def within(self, transaction: object) -> WithinTransaction:
        """Return the operations on jobs within a transaction of the application; see JobsService.within."""
        self._where()
        return self._service.within(transaction)

    # Handlers

    handler = _same(AsyncJobsService.handler)
    every = _same(AsyncJobsService.every)
    cron = _same(AsyncJobsService.cron)
    commands = _same(AsyncJobsService.commands)
    include = _same(AsyncJobsService.include)
    middleware = _same(AsyncJobsService.middleware)
    provide = _same(AsyncJobsService.provide)
    configure = _same(AsyncJobsService.configure)
    reload = _same(AsyncJobsService.reload)
    run = _until_closed(AsyncJobsService.run)
    slot_uses = _same(AsyncJobsService.slot_uses)
    supervision = _same(AsyncJobsService.supervision)
    wall_time = _same(AsyncJobsService.wall_time)
    ask_process = _plain(AsyncJobsService.ask_process)

    @property
    def handlers(self) -> dict[JobType, Handler[Any, Any]]:
        """The handlers by type."""
        return self._service.handlers

    @property
    def periodic(self) -> dict[JobType, Periodic]:
        """The periodic handlers by type, with their schedules and policies for missed ticks."""
        return self._service.periodic

    @property
    def process_id(self) -> str:
        """The id of this process in the list of `processes`; empty while it is not listed."""
        return self._service.process_id

    @property
    def settings(self) -> Settings:
        """The settings of the service."""
        return self._service.settings

    @property
    def store(self) -> Store:
        """The store; it belongs to the loop on which the service is open."""
        return self._service.store

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        lifecycle = self._service._lifecycle
        return lifecycle.loop if lifecycle.is_entered else None

    def _where(self) -> LoopCalls:
        access = self._service._access
        if access.inside:
            access.check_open()  # a transaction function of this service would wait for itself
        return super()._where()

    async def _enter(self, leaving: asyncio.Event, left: threading.Event) -> None:
        await super()._enter(leaving, left)
        self._service._lifecycle.give_up = self._give_up

    def _let_go(self) -> None:
        self._service._lifecycle.give_up = None
        super()._let_go()

    def _make_anew(self) -> object:
        before = dict(vars(self._service))
        self._service._wire()
        return before


class JobsClient(_Face[AsyncJobsClient]):
    """A JobsService in another process, over HTTP: the operations of jobs_service.JobsClient as plain methods.

    See JobsService for how they are called.

    Args:
        url, token, timeout, verify, transport, sources: as for the asyncio client.

    Raises:
        As the asyncio client.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: Duration = 30.0,
        verify: bool | ssl.SSLContext = True,
        transport: httpx.AsyncBaseTransport | None = None,
        sources: Sources | None = None,
    ) -> None:
        self._make = functools.partial(
            AsyncJobsClient, url, token=token, timeout=timeout, verify=verify, transport=transport, sources=sources
        )
        super().__init__(self._make())

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._service.url

    page = _plain(AsyncJobsClient.page)
    supervision = _plain(AsyncJobsClient.supervision)

    def run(
        self,
        jobs: JobsService | AsyncJobsService,
        *,
        types: Iterable[JobType] | None = None,
        max_jobs: int | None = None,
        started: Callable[[], object] | None = None,
    ) -> None:
        """Run the handlers of an application with the server's jobs, until interrupted; see JobsClient.run."""
        application = jobs.asynchronous if isinstance(jobs, JobsService) else jobs
        how = {"types": types, "max_jobs": max_jobs, "started": started}
        with contextlib.suppress(ServiceClosed):
            self._where().call(self._service.run, (application,), how)

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        return self._calls.loop if self._calls is not None and self._service._connection.is_open else None

    def _make_anew(self) -> object:
        before, self._service = self._service, self._make()
        return before
