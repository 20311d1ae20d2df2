"""An event loop on virtual time whose schedule is drawn from a seed.

Its clock stands still while anything is ready, and then jumps to the next timer: two hours of timers run in
milliseconds. The seed picks the next one of the ready callbacks, where asyncio would take the first, so that every
interleaving can happen. There are no threads, sockets or signals. All random draws of a simulated world come from that
seed, too.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import threading
from asyncio import format_helpers
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar
from weakref import ReferenceType, WeakKeyDictionary, ref

T = TypeVar("T")

_FEW_TIMERS: Final = 100
_FEW_TASKS: Final = 10_000

OWNER: ContextVar[Owner | None] = ContextVar("jobs_service_simulated_process", default=None)
"""The process of the current code; tasks and callbacks inherit it, like every context variable."""


# Draws


@dataclass(frozen=True)
class Plan:
    """The plan of a run: all draws of a seed, or a part of them.

    Attributes:
        seed: of all draws.
        operations: numbers of the operations to carry out; None for all.
        faults: the faults that hit, as "kind:number"; None for all that the seed draws.
        deviations: numbers of the schedule's picks that may deviate from first come, first served; None for all.
    """

    seed: int
    operations: frozenset[int] | None = None
    faults: frozenset[str] | None = None
    deviations: frozenset[int] | None = None


class Choices:
    """The draws of one run, and a record of the effective ones.

    Each concern has a stream of its own, and omitted choices still consume their draws. So a run without some
    operation, fault or deviation of the schedule stays nearly the same run, which makes shrinking work.

    Args:
        plan: the seed, and the effective part of its draws.

    Attributes:
        rates: probability of each kind of fault at each opportunity; missing kinds never hit.
        disorder: probability that the schedule picks any of the ready callbacks, not the first.
        operations, faults, deviations: the effective ones, in the form of Plan's attributes.
        on_fault: called with the kind of every fault that hits.
    """

    def __init__(self, plan: Plan, *, rates: Mapping[str, float] | None = None, disorder: float = 0.0) -> None:
        self.plan = plan
        self.rates = dict(rates or {})
        self.disorder = disorder
        self.operations: list[int] = []
        self.faults: list[str] = []
        self.on_fault: Callable[[str], object] = lambda kind: None
        self.deviations: list[int] = []
        self._streams: dict[str, random.Random] = {}
        # By kind of fault: the number of opportunities so far, and the deciding random numbers.
        self._chances: dict[str, list[Any]] = {}
        self._numbered = 0
        self._picks = 0
        self._draw_pick = self.stream("schedule").random

    def stream(self, name: str) -> random.Random:
        """Return the source of randomness of one concern; the same object for the same name."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = random.Random(f"{self.plan.seed}/{name}")
        return stream

    def operation(self) -> bool:
        """Return whether to carry out the next operation."""
        number = self._numbered
        self._numbered = number + 1
        if self.plan.operations is not None and number not in self.plan.operations:
            return False
        self.operations.append(number)
        return True

    def fault(self, kind: str) -> float | None:
        """Return the severity of a fault of this kind that hits here, a number from 0 up to 1; None if none hits."""
        rate = self.rates.get(kind)
        if not rate:
            return None
        chance = self._chances.get(kind)
        if chance is None:
            chance = self._chances[kind] = [0, self.stream(kind).random]
        number: int = chance[0]
        chance[0] = number + 1
        drawn: float = chance[1]()
        if drawn >= rate:
            return None
        name = f"{kind}:{number}"
        if self.plan.faults is not None and name not in self.plan.faults:
            return None
        self.faults.append(name)
        self.on_fault(kind)
        return drawn / rate

    def pick(self, count: int) -> int:
        """Return the index of the ready callback (of at least two) to run next, 0 for the earliest."""
        if not self.disorder:
            return 0
        number = self._picks
        self._picks = number + 1
        drawn = self._draw_pick()
        if drawn >= self.disorder:
            return 0
        index = int(drawn / self.disorder * count)
        if index:
            if self.plan.deviations is not None and number not in self.plan.deviations:
                return 0
            self.deviations.append(number)
        return index

    def calm(self) -> None:
        """Let no fault hit from now on."""
        self.rates.clear()


# The loop


class Owner(Protocol):
    """The simulated process that owns callbacks.

    Attributes:
        running: whether its callbacks run; while they do not, they are handed to `hold`.
        alive: whether they will ever run again.
    """

    running: bool
    alive: bool

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep a callback that must not run now."""


class Deadlock(Exception):
    """The loop has no ready callback and no timer, and would stand still for ever. The message lists all waiting
    tasks."""


class Livelock(Exception):
    """The world exceeded its number of steps, probably in an endless loop. The message lists the last callbacks."""


class SimulatedTask(asyncio.Task[Any]):
    """A task that is hashed by its number, so that sets have the same order in each run of a seed.

    Attributes:
        number: its position among all tasks of the loop, from 1.
        owner: its process.
    """

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], *, number: int, context: Context | None, **options: Any
    ) -> None:
        self.number = number
        self.owner = OWNER.get() if context is None else context.get(OWNER)
        options["context"] = context
        super().__init__(coroutine, **options)

    def set_name(self, value: object) -> None:
        """Set the task's name, unless it is None: Python 3.13 passes None for a task without a name."""
        super().set_name(self.get_name() if value is None else value)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Callback(asyncio.Handle):
    """asyncio's handle without the checks for debug mode, which this loop never has."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _Timer(asyncio.TimerHandle, _Callback):
    """asyncio's timer handle without the checks for debug mode."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        _Callback.__init__(self, callback, args, loop, context)
        self._when = when
        self._scheduled = True

    def cancel(self) -> None:
        """Cancel the timer."""
        if not self._cancelled:
            if self._scheduled:
                self._loop._timer_handle_cancelled(self)  # type: ignore[attr-defined]
            self._cancelled = True
            self._callback = None  # type: ignore[assignment]
            self._args = None  # type: ignore[assignment]

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop on virtual time.

    Args:
        choices: picks among the ready callbacks.
        most_steps: number of callbacks after which Livelock is raised.

    Attributes:
        steps: number of callbacks that have run.
        fingerprint: a hash of all steps so far and their times; equal runs have equal hashes, in any process.
        trace: called with each callback before it runs; None for no tracing.
    """

    def __init__(self, choices: Choices, *, most_steps: int = 10_000_000) -> None:
        super().__init__()
        self.set_debug(False)
        self.steps = self.fingerprint = 0
        self.trace: Callable[[asyncio.Handle], object] | None = None
        self._pick = choices.pick
        self._most_steps = most_steps
        self._now = 0.0
        self._tasks = 0
        self._made: list[ReferenceType[SimulatedTask]] = []
        self._most_made = _FEW_TASKS
        self._ready: list[asyncio.Handle] = []
        # Times compare faster than timers do, so they come first.
        self._scheduled: list[tuple[float, _Timer]] = []
        self._timer_cancelled_count = 0
        self._left = 0
        self._made_on = threading.get_ident()
        # With their owners, in the order of their begin, which the base class's set would not keep.
        self._asyncgens: WeakKeyDictionary[AsyncGenerator[Any, Any], Owner | None] = WeakKeyDictionary()
        self._recent: deque[str] = deque(maxlen=20)
        self.set_task_factory(self._make_task)

    # Every future calls it. This loop has no debug mode, and bool() is the cheapest function that returns False.
    get_debug = staticmethod(bool)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Add a callback to the ready ones."""
        if self._closed:  # type: ignore[attr-defined]
            self._check_closed()  # type: ignore[attr-defined]
        handle = _Callback(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback after so many virtual seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback at a time of the loop's clock."""
        if self._closed:  # type: ignore[attr-defined]
            self._check_closed()  # type: ignore[attr-defined]
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, (when, timer))
        return timer

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run the function later, on the loop: in a deterministic world there are no threads."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_soon(work)
        return future

    async def getaddrinfo(self, *arguments: Any, **keywords: Any) -> Any:
        """Refuse: the base class would use the real network."""
        raise NotImplementedError("a simulated loop has no network; give the tested code something else to talk to")

    async def getnameinfo(self, *arguments: Any, **keywords: Any) -> Any:
        """Refuse as well."""
        return await self.getaddrinfo()

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Like call_soon.

        Raises:
            RuntimeError: called on another thread, whose timing does not depend on the seed.
        """
        if threading.get_ident() != self._made_on:
            raise RuntimeError("a simulated loop was called from another thread, whose timing no seed decides")
        return self.call_soon(callback, *args, context=context)

    def take_back(self, handles: list[asyncio.Handle]) -> None:
        """Make held callbacks ready."""
        self._ready += handles

    def drop_timers(self, unwanted: Callable[[Context], bool]) -> None:
        """Forget the timers of these contexts."""
        self._scheduled = [each for each in self._scheduled if not unwanted(each[1]._context)]
        heapq.heapify(self._scheduled)

    def living_tasks(self) -> list[SimulatedTask]:
        """Return the tasks that have neither ended nor been given up, oldest first; asyncio's own set has all tasks."""
        living = [task for each in self._made if (task := each()) is not None and not task.done()]
        self._made = [ref(task) for task in living]
        return living

    def give_up_tasks(self, owner: Any) -> list[SimulatedTask]:
        """Return the living tasks of a dead process, and ignore them from now on."""
        living = self.living_tasks()
        self._made = [ref(task) for task in living if task.owner is not owner]
        return [task for task in living if task.owner is owner]

    def describe_tasks(self) -> str:
        """Return a line for each waiting task: its process, its name, and the innermost waiting line of code.

        Tasks of dead processes are omitted.
        """
        waiting = []
        for task in self.living_tasks():
            if (owner := task.owner) is None or owner.alive:
                process = "" if owner is None else f"{owner}, " if owner.running else f"{owner} (paused), "
                waiting.append(f"  {process}{task.get_name()}: {_innermost(task.get_coro())}")
        return "\n".join(sorted(waiting))

    async def shutdown_asyncgens(self) -> None:
        """Close the remaining asynchronous generators, except generators of dead processes, whose code must not run."""
        for generator, owner in list(self._asyncgens.items()):
            if owner is not None and not owner.alive:
                del self._asyncgens[generator]
        await super().shutdown_asyncgens()

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None, **options: Any
    ) -> SimulatedTask:
        self._tasks += 1
        options["name"] = options.get("name") or f"task {self._tasks}"
        task = SimulatedTask(coroutine, number=self._tasks, loop=loop, context=context, **options)
        self._made.append(ref(task))
        if len(self._made) > self._most_made:
            self._most_made = max(_FEW_TASKS, 2 * len(self.living_tasks()))
        return task

    def _run_once(self) -> None:
        """Run callbacks until the loop is to stop. Called by asyncio's run_forever."""
        ready, pick, few_left = self._ready, self._pick, self._most_steps - 20
        while not self._stopping:  # type: ignore[attr-defined]
            # As in asyncio, due timers join after the callbacks that were ready when the last timers joined.
            if not self._left:
                self._gather_timers(ready)
                self._left = len(ready)
            self._left -= 1
            count = len(ready)
            handle = ready.pop(pick(count)) if count > 1 else ready.pop()
            if handle._cancelled:
                continue
            context: Context = handle._context  # type: ignore[attr-defined]
            owner = context.get(OWNER)
            if owner is not None and not owner.running:
                owner.hold(handle)
                continue
            self.steps += 1
            if self.steps > few_left:
                self._note_or_give_up(handle)
            callback: Callable[..., object] = handle._callback  # type: ignore[attr-defined]
            task = getattr(callback, "__self__", None)
            number = task.number if task.__class__ is SimulatedTask else 0
            self.fingerprint = hash((self.fingerprint, self._now, number))
            if self.trace is not None:
                self.trace(handle)
            try:
                context.run(callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._failed(handle, error)

    def _failed(self, handle: asyncio.Handle, error: BaseException) -> None:
        """Pass the exception of a callback to the exception handler, like asyncio."""
        source = format_helpers._format_callback_source(handle._callback, handle._args)  # type: ignore[attr-defined]
        message = f"Exception in callback {source}"
        self.call_exception_handler({"message": message, "exception": error, "handle": handle})

    def _gather_timers(self, ready: list[asyncio.Handle]) -> None:
        """Make the callbacks of due timers ready; if nothing is ready, move the clock to the next timer.

        The steps are the same as in asyncio, whose heap decides the order of simultaneous timers.
        """
        scheduled = self._scheduled
        if self._timer_cancelled_count > len(scheduled) / 2 and len(scheduled) > _FEW_TIMERS:
            self._drop_canceled()
            scheduled = self._scheduled
        while scheduled and scheduled[0][1]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)[1]._scheduled = False
        if not ready:
            if not scheduled:
                raise Deadlock(
                    f"nothing is ready and no timer is set at {self._now:.3f} s; waiting:\n{self.describe_tasks()}"
                )
            self._now = max(self._now, scheduled[0][0])
        while scheduled and scheduled[0][0] <= self._now:
            timer = heapq.heappop(scheduled)[1]
            timer._scheduled = False
            ready.append(timer)

    def _drop_canceled(self) -> None:
        for _, timer in self._scheduled:
            if timer._cancelled:
                timer._scheduled = False
        self._scheduled = [each for each in self._scheduled if not each[1]._cancelled]
        heapq.heapify(self._scheduled)
        self._timer_cancelled_count = 0

    def _note_or_give_up(self, handle: asyncio.Handle) -> None:
        self._recent.append(describe(handle))
        if self.steps > self._most_steps:
            raise Livelock(
                f"more than {self._most_steps} steps at {self._now:.3f} s; the last ones:\n" + "\n".join(self._recent)
            )

    # Asynchronous generators: those of a dead process stay open, because closing one would run its `finally`.

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        self._asyncgens[agen] = OWNER.get()

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        owner = self._asyncgens.pop(agen, None)
        if self.is_running() and (owner is None or owner.alive):
            self.call_soon(self.create_task, agen.aclose())

    # Abstract methods of asyncio's base class.

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there are no socket events."""

    def _write_to_self(self) -> None:
        """Do nothing: there is no selector to wake."""


def describe(handle: asyncio.Handle) -> str:
    """Describe a callback without addresses, so that the text is the same in every run."""
    callback = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return f"{task.get_name()}: {getattr(task.get_coro(), '__qualname__', '')}"
    return str(getattr(callback, "__qualname__", type(callback).__name__))


def _innermost(awaitable: Any) -> str:
    where = type(awaitable).__name__
    while (frame := getattr(awaitable, "cr_frame", None)) is not None:
        where = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
        awaitable = awaitable.cr_await
    return where
