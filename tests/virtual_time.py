"""An event loop whose clock jumps to the next timer instead of waiting for it: hours of timers run in milliseconds.

Everything that uses the loop's clock (asyncio.sleep, timeouts, call_later, anyio) is exact and repeatable under it.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

EPOCH = 1_700_000_000.0
"""The wall-clock time (seconds since the epoch) at which a virtual loop's clock stands at zero."""


class Deadlock(AssertionError):
    """Nothing is ready, no timer is set and nobody outside works for the loop: it would wait for ever."""


class _JumpingSelector(selectors.BaseSelector):
    """Looks for real events without waiting; when there are none, moves the loop's clock to its next timer."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.loop: VirtualTimeLoop

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.loop.take_step():
            timeout = 0
        events = self._real.select(0)
        if events or timeout == 0:
            self.loop.catch_up()
            return events
        if self.loop.outside_work:
            return self._real.select(None)
        if timeout is not None:
            self.loop.jump()
            return []
        if len(self._real.get_map()) > 1:  # more than the loop's own wake-up pipe: somebody waits for a real socket
            return self._real.select(None)
        raise Deadlock(self.loop.describe_tasks())


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A selector loop on virtual time, which begins at 0 and stands still while anything is ready.

    It also stands still while executor work (`run_in_executor`, `asyncio.to_thread`) is under way. Threads that the
    loop does not know of (a store's writer, anyio's workers) must be announced with `outside()`, or their answers race
    with the jumps. So do sockets and pipes: a timer beside them always wins.

    Attributes:
        steps: how many iterations the loop has made; equal from run to run.
    """

    def __init__(self) -> None:
        selector = _JumpingSelector()
        selector.loop = self
        self._now = 0.0
        self.steps = 0
        self.outside_work = 0
        self._at_step: dict[int, Callable[[], object]] = {}
        super().__init__(selector)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._now

    def wall_time(self) -> float:
        """Return seconds since the epoch in step with the virtual clock: for `Sources(wall_time=loop.wall_time)`."""
        return EPOCH + self._now

    def call_at_step(self, step: int, callback: Callable[[], object]) -> None:
        """Call `callback` between two iterations, when `steps` reaches `step`: for cancelling at every await point."""
        self._at_step[step] = callback

    @contextmanager
    def outside(self) -> Iterator[None]:
        """While entered, somebody outside works for the loop: the clock stands still and waiting is real."""
        self.outside_work += 1
        try:
            yield
        finally:
            self.outside_work -= 1

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self.outside_work += 1
        future.add_done_callback(self._executor_answered)
        return future

    def _executor_answered(self, _: asyncio.Future[Any]) -> None:
        self.outside_work -= 1

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        with self.outside():
            await super().shutdown_default_executor(*args, **kwargs)

    def take_step(self) -> bool:
        """Count an iteration; return whether a callback of `call_at_step` ran, which may have made something ready."""
        self.steps += 1
        callback = self._at_step.pop(self.steps, None)
        if callback is not None:
            callback()
        return callback is not None

    def catch_up(self) -> None:
        """Move the clock to a timer that asyncio fires now, because it is due within the clock's resolution.

        Standing still, two tasks that wait for the rest of that time would wake each other for ever.
        """
        if self._scheduled and self._scheduled[0]._when < self._now + self._clock_resolution:  # type: ignore[attr-defined]
            self.jump()

    def jump(self) -> None:
        """Move the clock to the next timer. The loop has just dropped canceled timers from the head of its heap."""
        self._now = max(self._now, self._scheduled[0]._when)  # type: ignore[attr-defined]

    def describe_tasks(self) -> str:
        """Return one line per task that waits, naming the innermost line of code that it waits in."""
        waiting = sorted(f"  {task.get_name()}: {_innermost(task.get_coro())}" for task in asyncio.all_tasks(self))
        return "\n".join([f"the loop would wait for ever at {self._now} s; waiting:", *waiting])


def _innermost(awaitable: Any) -> str:
    where = repr(awaitable)
    while (frame := getattr(awaitable, "cr_frame", None)) is not None:
        where = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
        awaitable = awaitable.cr_await
    return where


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a new virtual loop and return its result.

    Raises:
        Deadlock: it would have waited for ever; the message says which task waits where.
        AssertionError: it succeeded but left tasks behind, or a callback's or task's exception reached nobody.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        unhandled: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        result = runner.run(main)
        left = [task.get_name() for task in asyncio.all_tasks(loop)]
        assert not left, f"tasks left behind: {left}"
        assert not unhandled, f"exceptions that nobody saw: {unhandled}"
        return result


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Decorate an async test so that it runs on a virtual loop of its own (its fixtures must not be async)."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(test(*args, **kwargs))

    return run


def cancel_at_every_step(
    scenario: Callable[[], Awaitable[object]], *, again_after: int | None = None, limit: int = 10_000
) -> Iterator[int]:
    """Run `scenario` again and again, cancelling its task one loop iteration later each time.

    Each run has a new loop. Yields the step of the cancellation after the run has ended (canceled, or through with it
    all the same), for the caller's checks; ends with the first run that was over before its step came. A run that
    leaves tasks behind, or raises anything but CancelledError, fails.

    Args:
        again_after: cancel a second time so many iterations after the first.
        limit: the greatest number of runs, against scenarios that never end.
    """
    for step in range(1, limit):
        reached = run_virtual(_cancelled_at(scenario, step, again_after))
        yield step
        if not reached:
            return
    raise AssertionError(f"the scenario did not end within {limit} iterations of the loop")


async def _cancelled_at(scenario: Callable[[], Awaitable[object]], step: int, again_after: int | None) -> bool:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    reached = False

    async def main() -> None:
        await scenario()

    task = asyncio.create_task(main(), name="scenario")

    def cancel() -> None:
        nonlocal reached
        reached = task.cancel() or reached

    loop.call_at_step(loop.steps + step, cancel)
    if again_after is not None:
        loop.call_at_step(loop.steps + step + again_after, cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return reached
