"""A simulated world: processes with clocks of their own on one simulated cluster, all from one seed."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any, Final, TypeVar

import structlog

from jobs_service.service import JobsService
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import Limits, Store
from jobs_service.testing.cluster import Cluster, SimulatedStore
from jobs_service.testing.loop import OWNER, Choices, Plan, SimulatedLoop, SimulatedTask

T = TypeVar("T")

_DEFAULTS: Final = Settings.model_construct()
"""The default settings of worlds, made once because that is slow."""

EPOCH: Final = 1_700_000_000.0
"""The initial wall-clock time of a world, seconds since the epoch."""

_MOST_CLOSES: Final = 100


class Clock:
    """The wall clock of one process.

    Attributes:
        ahead: seconds ahead of the world's clock; negative if behind. Change it to make the clock jump.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ahead: float = 0.0) -> None:
        self.ahead = ahead
        self._loop = loop

    def wall_time(self) -> float:
        """Return seconds since the epoch."""
        return EPOCH + self._loop.time() + self.ahead


class Process:
    """A simulated process: after a kill its program ends at the next await, and during a pause it stands still.

    Attributes:
        world: its world.
        name: its name; a restarted process has the same name.
        incarnation: its number among the processes with that name, from 1.
        clock: its wall clock.
        store: its connection to the cluster.
        sources: wall time, randomness and ids of this process.
        running: whether its code runs: true while it is alive and not paused.
        alive: whether it has neither ended nor been killed.
        pauses: number of pauses so far.
        failure: the exception of its program; None while it runs, and after a return or a stop.
    """

    def __init__(self, world: World, name: str, incarnation: int, *, clock: Clock, settings: Settings) -> None:
        self.name = name
        self.incarnation = incarnation
        self.clock = clock
        self.settings = settings
        called = f"{name}/{incarnation}"
        self.sources = Sources(f"{world.choices.plan.seed}/{called}", wall_time=clock.wall_time, worker=called)
        self.running = True
        self.alive = True
        self.pauses = 0
        self.failure: BaseException | None = None
        self.context = Context()
        self.context.run(OWNER.set, self)
        self.store: Store = SimulatedStore(
            world.cluster, self, settings=settings, sources=self.sources, context=self.context
        )
        self.world = world
        self._held: list[asyncio.Handle] = []
        self._end = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def service(self, *, settings: Settings | None = None, supervise: bool = True) -> JobsService:
        """Return a JobsService on this process's connection, clock and randomness; enter it with `async with`."""
        return JobsService(self.store, settings=settings or self.settings, supervise=supervise, sources=self.sources)

    def kill(self) -> None:
        """End the process at once, like SIGKILL: none of its code runs any more, not even a `finally`."""
        if not self.alive:
            return
        self.world.note("killed", self)
        self.running = self.alive = False
        self.world._bury(self)
        self._end.set()

    def pause(self) -> None:
        """Stop its execution, like SIGSTOP, while the world goes on."""
        if self.alive and self.running:
            self.world.note("paused", self)
            self.running = False
            self.pauses += 1

    def go_on(self) -> None:
        """Continue a paused process."""
        if self.alive and not self.running:
            self.world.note("goes on", self)
            self.running = True
            self.world.loop.take_back(self._held)
            self._held = []

    def request_stop(self) -> None:
        """Cancel its program, like a program's own good SIGTERM handler."""
        if self.alive and self._task is not None:
            self.world.loop.call_soon(self._task.cancel, context=self.context)

    async def ended(self) -> None:
        """Wait until the process has returned, failed, or was killed."""
        await self._end.wait()

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep a callback that came during a pause, or after the process's death."""
        self._held.append(handle)

    def begin(self, program: Callable[[Process], Awaitable[Any]]) -> None:
        """Run its program; called once, by the world."""
        self._task = self.world.loop.create_task(self._run(program), name=str(self), context=self.context)

    async def _run(self, program: Callable[[Process], Awaitable[Any]]) -> None:
        try:
            await program(self)
        except asyncio.CancelledError:
            pass  # It was asked to stop.
        except Exception as error:
            self.failure = error
            self.world.note(f"failed: {error!r}", self)
        self.world.note("ended", self)
        self.alive = False
        self.world.cluster.disconnect(self)
        self._end.set()

    def __str__(self) -> str:
        return f"{self.name}.{self.incarnation}"


class World:
    """A loop, a cluster, and processes. The same plan and the same program give the same run, event for event.

    Args:
        plan: the seed, or a plan.
        rates: probability of each fault of `cluster.FAULTS` at each opportunity; none by default.
        disorder: probability that the schedule picks any ready callback, not the first.
        latency: longest time of a request to the cluster in seconds.
        limits: of transactions.
        settings: of processes that are started without any; None for the defaults, independent of the environment.
        most_steps: number of callbacks after which the run ends with a Livelock.
        log_level: the lowest level of the services' log events to keep: 10 for all, 30 for warnings and errors.
        kept_events: the number of latest events to keep; None for all.

    Attributes:
        loop, choices, cluster: its parts.
        events: the last events, each a line with its time; `note` adds one.
        unhandled: exceptions that no code has handled.
        errors: the error events of the services' logs, each a line.
        on_log: called with the name and the fields of each event that a service logs, in that service's context.
    """

    def __init__(
        self,
        plan: Plan | int = 0,
        *,
        rates: Mapping[str, float] | None = None,
        disorder: float = 1.0,
        latency: float = 0.0,
        limits: Limits | None = None,
        settings: Settings | None = None,
        most_steps: int = 10_000_000,
        log_level: int = 30,
        kept_events: int | None = 400,
    ) -> None:
        self.choices = Choices(Plan(plan) if isinstance(plan, int) else plan, rates=rates, disorder=disorder)
        self.loop = SimulatedLoop(self.choices, most_steps=most_steps)
        self.cluster = Cluster(self.loop, self.choices, limits=limits)
        self.cluster.latency = latency
        self.events: deque[str] = deque(maxlen=kept_events)
        self.unhandled: list[str] = []
        self.errors: list[str] = []
        self.on_log: Callable[[str, Mapping[str, Any]], object] = lambda event, fields: None
        self._log_level = log_level
        # Not the environment's settings, which would change the run.
        self.settings = settings or _DEFAULTS
        self._incarnations: dict[str, int] = {}
        self._processes: list[Process] = []
        self._graves: set[SimulatedTask] = set()
        self._over = False

    def note(self, text: str, process: object = None) -> None:
        """Add an event, with its time and process."""
        if self._over:
            return
        self.events.append(f"{self.loop.time():10.4f} {process or '-'}: {text}")

    def start(
        self,
        name: str,
        program: Callable[[Process], Awaitable[Any]],
        *,
        settings: Settings | None = None,
        ahead: float = 0.0,
    ) -> Process:
        """Start a process.

        Args:
            name: for people; the same name again is the next incarnation.
            program: called with the process: usually `async with process.service() as jobs: ...`.
            settings: of its services and its connection; None for the world's.
            ahead: seconds by which its wall clock is ahead of the world's.
        """
        incarnation = self._incarnations[name] = self._incarnations.get(name, 0) + 1
        process = Process(self, name, incarnation, clock=Clock(self.loop, ahead), settings=settings or self.settings)
        self._processes.append(process)
        self.note("started", process)
        process.begin(program)
        return process

    def run(self, main: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        """Run `main` in this world to its end, stop the remaining processes, and return the result of `main`. Once
        only.

        Raises:
            Exception: any error of `main`.
            Deadlock, Livelock: the run would never have ended.
        """
        loop = self.loop
        loop.set_exception_handler(self._unhandled)
        with self._captured_log(), without_garbage_collection():
            try:
                result = loop.run_until_complete(loop.create_task(main(self), name="main"))
                loop.run_until_complete(self._stop_all())
                loop.run_until_complete(loop.shutdown_asyncgens())
                return result
            finally:
                self._dispose()

    def left_behind(self) -> list[str]:
        """Return the names of the tasks of living processes that have not ended; for checks within `main`."""
        current = asyncio.current_task()
        return sorted(task.get_name() for task in self.loop.living_tasks() if task is not current)

    async def _stop_all(self) -> None:
        for process in self._processes:
            process.go_on()
            process.request_stop()
        for process in self._processes:
            await process.ended()

    def _bury(self, process: Process) -> None:
        """Keep a dead process's tasks to the end: if they were collected, their `finally` blocks would run."""
        for task in self.loop.give_up_tasks(process):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            self._graves.add(task)
        self.loop.drop_timers(lambda context: context.get(OWNER) is process)
        self.cluster.disconnect(process)

    def _dispose(self) -> None:
        """Close the remaining coroutines. Their `finally` blocks run here, where they have no effect any more."""
        loop = self.loop
        self._over = True
        asyncio._set_running_loop(loop)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                closed: set[asyncio.Task[Any]] = set()
                # asyncio does not list the tasks that a service keeps for itself.
                while left := {*loop.living_tasks(), *self._graves, *asyncio.all_tasks(loop)} - closed:
                    for generator in list(loop._asyncgens):
                        _close(generator.ag_await)  # type: ignore[attr-defined]
                    for task in left:
                        task._log_destroy_pending = False  # type: ignore[attr-defined]
                        _close(task.get_coro())
                        asyncio._unregister_task(task)
                    closed |= left
                self._graves.clear()
        finally:
            asyncio._set_running_loop(None)
            loop.close()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self._over:
            return
        error = context.get("exception")
        text = f"{context['message']}: {error!r}" if error is not None else str(context["message"])
        # asyncio catches a callback's exception outside of the callback's own context.
        handle = context.get("handle")
        owner = OWNER.get() if handle is None else handle._context.get(OWNER)
        self.note(f"unhandled: {text}", owner)
        self.unhandled.append(text)

    @contextmanager
    def _captured_log(self) -> Iterator[None]:
        """Turn the services' log events into events of the world, instead of printing them."""
        before = structlog.get_config() if structlog.is_configured() else None
        structlog.configure(
            processors=[self._log],
            wrapper_class=structlog.make_filtering_bound_logger(self._log_level),
            cache_logger_on_first_use=False,
        )
        try:
            yield
        finally:
            structlog.reset_defaults()
            if before is not None:
                structlog.configure(**before)

    def _log(self, logger: Any, method: str, event: Mapping[str, Any]) -> Any:
        fields = {name: value for name, value in event.items() if name not in ("event", "exc_info")}
        error = event.get("exc_info")
        if isinstance(error := sys.exception() if error is True else error, BaseException):
            fields["error"] = repr(error)
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        if method == "error":
            self.errors.append(f"{event['event']} {shown}")
        try:
            self.on_log(event["event"], fields)
        except Exception as error:  # the caller of the logger goes on
            self.unhandled.append(f"on_log: {error!r}")
        self.note(f"{event['event']} {shown}", OWNER.get())
        raise structlog.DropEvent


def _close(coroutine: Any) -> None:
    """End a suspended coroutine, however often it awaits something else while it unwinds.

    From the inside out: closing the outer coroutine first would drop an inner one in the middle of its unwinding, and
    Python would complain.
    """
    for _ in range(_MOST_CLOSES):
        innermost = _innermost_open(coroutine)
        if innermost is None:
            return
        with suppress(BaseException):
            innermost.close()


def _innermost_open(coroutine: Any) -> Any:
    """Return the innermost unfinished coroutine in the chain of awaited coroutines; None if all have ended."""
    found = None
    while getattr(coroutine, "cr_frame", None) is not None:
        found = coroutine
        coroutine = coroutine.cr_await
    return found


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect cycles only afterwards: the time of a collection would depend on the Python process's earlier work."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
