"""Threads of plain functions in a simulated world: real ones, each of which runs only while the loop waits for it.

So a plain function runs in a thread of its own, as the service starts it, and nothing is left to chance: it gives the
loop its turn where it sleeps, or waits for an operation on its job, and goes on when the loop comes by.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from jobs_service.runner import blocking, function_calls
from jobs_service.testing import World


class Killed(BaseException):
    """Ends the threads that are left when a run is over."""


class Stage:
    """The threads of plain functions of one run.

    Args:
        world: of the run.

    Attributes:
        world: as given.
        running: the thread that runs just now.
        threads: those that have not ended.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.running: PlainThread | None = None
        self.threads: list[PlainThread] = []

    def sleep(self, seconds: float) -> None:
        """Have the plain function that calls this stand still for so long, on the loop's clock."""
        self.current.wake_after(seconds)
        self.current.stand()

    @property
    def current(self) -> PlainThread:
        """The thread that runs just now."""
        assert self.running is not None
        return self.running

    @contextmanager
    def open(self) -> Iterator[None]:
        """Have the service start its threads here, until left: then those that are left are ended."""
        make_thread = SimpleNamespace(Thread=lambda **options: PlainThread(self, **options))
        make_event = SimpleNamespace(Event=lambda: Signal(self))
        with ExitStack() as stack:
            stack.enter_context(patch.object(function_calls, "threading", make_thread))
            stack.enter_context(patch.object(function_calls, "asyncio", _Waiting(self)))
            stack.enter_context(patch.object(blocking, "threading", make_event))
            try:
                yield
            finally:
                for thread in [*self.threads]:
                    thread.end()


class PlainThread:
    """A thread that runs only while the loop's thread waits for it.

    Args:
        stage: of the run.
        target: what it runs.
        name, daemon: as for other threads.
    """

    def __init__(self, stage: Stage, *, target: Callable[[], object], name: str, daemon: bool) -> None:
        self._stage = stage
        self._target = target
        self._context = copy_context()
        self._killed = self._ended = self._scheduled = False
        self._go, self._stands = _thread.allocate_lock(), _thread.allocate_lock()
        self._go.acquire()
        self._stands.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=daemon)

    def start(self) -> None:
        """Begin, as soon as the loop comes by."""
        self._stage.threads.append(self)
        self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Have it go on as soon as the loop comes by."""
        if not self._scheduled and not self._ended:
            self._scheduled = True
            self._stage.world.loop.call_soon(self._step, context=self._context)

    def wake_after(self, seconds: float) -> asyncio.TimerHandle:
        """Have it go on some time later."""
        return self._stage.world.loop.call_later(seconds, self.wake, context=self._context)

    def stand(self) -> None:
        """Stop here, on this thread, until it is its turn again.

        Raises:
            Killed: the run is over.
        """
        self._stands.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def end(self) -> None:
        """End it where it stands."""
        self._killed = True
        while not self._ended:
            self._step()
        self._thread.join()

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return not self._ended

    def _step(self) -> None:
        self._scheduled = False
        if not self.is_alive():
            return
        stage, loop = self._stage, self._stage.world.loop
        stage.running, before = self, stage.running
        # While the loop's thread waits, this one may call it as if it were that one.
        made_on, loop._made_on = loop._made_on, self._thread.ident or 0
        self._go.release()
        self._stands.acquire()
        stage.running, loop._made_on = before, made_on
        if not self.is_alive():
            stage.threads.remove(self)

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                # The context is that of the loop's callbacks as well, which has been left when this runs.
                self._context.copy().run(self._target)
        finally:
            self._ended = True
            self._stands.release()


class Signal:
    """What `threading.Event` is to a plain function whose time is the loop's."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._is_set = False
        self._waiting: list[PlainThread] = []

    def set(self) -> None:
        """See threading.Event."""
        self._is_set = True
        for thread in self._waiting:
            thread.wake()

    def is_set(self) -> bool:
        """See threading.Event."""
        return self._is_set

    def wait(self, timeout: float) -> bool:
        """See threading.Event."""
        thread, loop = self._stage.current, self._stage.world.loop
        until = loop.time() + timeout
        self._waiting.append(thread)
        timer = thread.wake_after(timeout)
        while not self._is_set and loop.time() < until:
            thread.stand()
        timer.cancel()  # else it would be woken early from whatever it does next
        self._waiting.remove(thread)
        return self._is_set


class _Waiting:
    """What the module asyncio is to code in such a thread: who waits for the loop gives it its turn."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def run_coroutine_threadsafe(self, coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> _Answer:
        """See asyncio."""
        return _Answer(self._stage, asyncio.run_coroutine_threadsafe(coroutine, loop))


class _Answer:
    def __init__(self, stage: Stage, future: Future[Any]) -> None:
        self._stage = stage
        self._future = future

    def result(self) -> Any:
        thread = self._stage.current
        self._future.add_done_callback(lambda _: thread.wake())
        while not self._future.done():
            thread.stand()
        return self._future.result()
