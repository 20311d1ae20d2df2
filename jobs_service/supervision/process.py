"""The life of one task under supervision: started, running, asked to stop, ended; and callbacks for its end.

Actors and supervisors are both processes, in Erlang's sense of the word.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Self

from jobs_service.errors import JobsError, StoreLost
from jobs_service.log import EventLog
from jobs_service.uncancelable import wait_until

Kind = Literal["supervisor", "dynamic", "actor"]
State = Literal["starting", "running", "restarting", "stopping", "stopped", "failed"]

log = EventLog("jobs_service.supervision")


# A tree as plain data


@dataclass(frozen=True)
class Node:
    """One actor or supervisor.

    Attributes:
        name: its name among its supervisor's children.
        kind: "supervisor", "dynamic" (a supervisor of a varying set of children) or "actor".
        state: "restarting" from its end until it has initialized again.
        restarts: number of restarts by its supervisor.
        seconds: from its last start until now, or until its end, by the loop's clock.
        children: in the order of their start.
    """

    name: str
    kind: Kind
    state: State
    restarts: int = 0
    seconds: float = 0.0
    children: list[Node] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the node and everything below it as dicts and lists, ready for JSON."""
        return asdict(self)


# Errors; applications meet only SupervisorFailed, which is among the public errors


class ActorStopped(JobsError):
    """The process has ended, or was never started, so it takes no message and no child. Chains the cause of its end."""


class UnknownMessage(JobsError):
    """An actor got an unknown message: a bug of the sender, and the end of the actor."""


class Killed(JobsError):
    """A task was canceled from outside, and not by its supervisor."""


# Processes


class SupervisedProcess(ABC):
    """One task with a name and a state, which begins once, ends once and calls back with the cause of its end.

    The code that starts a process owns it and must wait for its end, also when canceled: supervisors and `run_tree` do.

    Attributes:
        name: for people, and unique among the children of one supervisor.
        supervisor: name of the supervisor that started it, or None.
        state: see `Node.state`.
        cause: why it failed; None while it lives, and after a return by itself or a requested stop.
        kind: see `Node.kind`.
        shutdown: seconds after which a process that is still ending is canceled once more, each time with a warning;
            None to wait without limit.
    """

    kind: ClassVar[Kind]
    shutdown: ClassVar[float | None] = 5.0

    def __init__(self, name: str) -> None:
        self.name = name
        self.supervisor: str | None = None
        self.state: State = "starting"
        self.cause: BaseException | None = None
        self._stop_requested = False
        self._fatal: BaseException | None = None
        self._overdue = False
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None]
        self._reminder: asyncio.TimerHandle | None = None
        self._exit_callbacks: dict[object, Callable[[Any, BaseException | None], object]] = {}
        self._loop: asyncio.AbstractEventLoop
        self._started_at = 0.0
        self._ended_at: float | None = None

    @abstractmethod
    async def _live(self) -> None:
        """The task's whole life: initialize, call `_initialized`, work, clean up."""

    @property
    def is_alive(self) -> bool:
        """Whether it has begun and not ended; true while it initializes and while it is stopping."""
        return self._task is not None and not self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether its life is over."""
        return self._ended_at is not None

    async def start(self) -> None:
        """Begin, and return when the process has initialized.

        Raises:
            BaseException: the error of its initialization; the process has ended.
            ActorStopped: a stop was requested before the process had initialized.
            RuntimeError: the process was started before; it lives once.
        """
        if self._task is not None:
            raise RuntimeError(f"{self.name!r} was started before: a restart needs a new object")
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        self._started_at = self._loop.time()
        self._task = self._loop.create_task(self._begin(), name=self.name)
        self._task.add_done_callback(self._on_done)
        try:
            await self._ready
        except asyncio.CancelledError:
            await stop_in_order([self])
            raise
        if self.cause is not None:
            raise self.cause
        if not self.is_alive:
            raise ActorStopped(f"{self.name!r} was stopped while it was starting")

    async def _begin(self) -> None:
        if self._task is None:
            # The loop's task factory is eager (Python 3.12): `start` has not got the task yet.
            await asyncio.sleep(0)
        await self._live()

    def request_stop(self) -> None:
        """Ask the process to end, and return at once. No effect on an ended process or on a repeated request."""
        if self.is_alive and not self._stop_requested:
            self._stop_requested = True
            self.state = "stopping"
            self._interrupt()

    async def stop(self) -> None:
        """Ask the process to end, and wait until it has ended in any way.

        A caller that is canceled meanwhile returns at once; the process ends all the same, and its supervisor waits.
        """
        self.request_stop()
        await self.ended()

    async def ended(self) -> BaseException | None:
        """Wait until the process has ended, and return its `cause`; at once if it has ended or was never started."""
        if self.is_alive:
            end = asyncio.Event()
            forget = self.on_exit(lambda *_: end.set())
            try:
                await end.wait()
            finally:
                forget()
        return self.cause

    def on_exit(self, callback: Callable[[Self, BaseException | None], object]) -> Callable[[], None]:
        """Have `callback(process, cause)` called once after the process's end: at once if it has ended already.

        Returns:
            A function that cancels the request.
        """
        token = object()
        self._exit_callbacks[token] = callback
        if self.has_ended:
            self._tell_exit()

        def forget() -> None:
            self._exit_callbacks.pop(token, None)

        return forget

    def tree(self) -> Node:
        """Return the process and everything below it as plain data."""
        return Node(self.name, self.kind, self.state, seconds=self._seconds(), children=self._child_nodes())

    def _child_nodes(self) -> list[Node]:
        return []

    def _seconds(self) -> float:
        if self._task is None:
            return 0.0
        return (self._loop.time() if self._ended_at is None else self._ended_at) - self._started_at

    def _initialized(self) -> None:
        if not self._stop_requested:
            self.state = "running"
        if not self._ready.done():
            self._ready.set_result(None)
        log.debug("child_started", child=self.name, supervisor=self.supervisor)

    def _kill(self, cause: BaseException) -> None:
        """End the process from within this package, for this cause."""
        self._fatal = cause
        self._interrupt()

    def _interrupt(self) -> None:
        assert self._task is not None
        self._task.cancel()
        self._remind()

    def _remind(self) -> None:
        """Schedule another cancellation: one can get lost (in user code, or in asyncio.wait_for before Python 3.12)."""
        if self.shutdown is not None and self._reminder is None:
            self._reminder = self._loop.call_later(self.shutdown, self._take_too_long)

    def _take_too_long(self) -> None:
        log.warning("child_slow_to_stop", child=self.name, supervisor=self.supervisor, seconds=self.shutdown)
        self._overdue = True
        self._reminder = None
        self._interrupt()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self.cause = cause = self._why_ended(task)
        self.state = "stopped" if cause is None else "failed"
        self._ended_at = self._loop.time()
        if self._reminder is not None:
            self._reminder.cancel()
        if cause is None or isinstance(cause, StoreLost):  # of a lost store the service tells once
            log.debug("child_stopped", child=self.name, supervisor=self.supervisor)
        else:
            event = "child_crashed" if self._ready.done() else "child_start_failed"
            log.error(event, child=self.name, supervisor=self.supervisor, exc_info=cause)
        if not self._ready.done():
            self._ready.set_result(None)
        self._tell_exit()

    def _why_ended(self, task: asyncio.Task[None]) -> BaseException | None:
        cause = None if task.cancelled() else task.exception()
        if cause is None:
            cause = self._fatal
        if cause is None and task.cancelled() and not self._stop_requested:
            cause = Killed(f"{self.name!r} was canceled from outside, not by its supervisor")
        return cause

    def _tell_exit(self) -> None:
        while self._exit_callbacks:
            callback = self._exit_callbacks.pop(next(iter(self._exit_callbacks)))
            try:
                callback(self, self.cause)
            except Exception:
                log.exception("exit_callback_failed", child=self.name, supervisor=self.supervisor)


async def stop_in_order(processes: Iterable[SupervisedProcess]) -> asyncio.CancelledError | None:
    """Stop one process after the other: each has ended before the next is asked to.

    The caller's cancellation does not cut this short.

    Returns:
        The caller's last cancellation meanwhile, to be raised by the caller; None if there was none.
    """
    canceled = None
    for process in processes:
        canceled = await _stop(process) or canceled
    return canceled


async def _stop(process: SupervisedProcess) -> asyncio.CancelledError | None:
    process.request_stop()
    return await wait_until(lambda: not process.is_alive, process.ended)


# Actors


@dataclass(frozen=True)
class Down:
    """The message that tells an actor about the end of a monitored process.

    Attributes:
        process: the ended process.
        cause: as `SupervisedProcess.cause`.
    """

    process: SupervisedProcess
    cause: BaseException | None


class Actor(SupervisedProcess):
    """One task that takes messages from its inbox, one at a time. Override `init`, `handle`, `terminate`, or `run`.

    Use it on the loop's thread only. An actor ends when `run` returns or raises, when its supervisor stops it (it is
    canceled), when it calls `request_stop` on itself, or when a linked task dies.
    """

    kind: ClassVar[Kind] = "actor"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._inbox: deque[Any] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._linked: set[asyncio.Task[Any]] = set()
        self._monitored: dict[SupervisedProcess, Callable[[], None]] = {}
        self._ending = False

    async def init(self) -> None:
        """Prepare, before the actor counts as started.

        If it raises, the start has failed and `terminate` is not called.
        """

    async def handle(self, message: Any) -> None:
        """Handle a message; an exception ends the actor.

        Raises:
            UnknownMessage: by default. Overriding methods pass unknown messages on to this one.
        """
        raise UnknownMessage(f"actor {self.name!r} does not know the message {message!r}")

    async def run(self) -> None:
        """Handle one message after the other. Override it for another main loop."""
        while True:
            await self.handle(await self.receive())

    async def terminate(self) -> None:
        """Clean up, if `init` had succeeded; linked tasks have ended before. Must be short.

        Cancellation does not interrupt it before `shutdown` seconds have passed. An error is logged, and turns the
        actor's end into a failure.
        """

    def cast(self, message: Any) -> None:
        """Send a message, anything but None, without waiting. An ended actor drops it."""
        if self.is_alive:
            self._inbox.append(message)
            self._wake()

    async def receive(self, timeout: float | None = None) -> Any:
        """Return the next message, in the order of sending; for the actor's own task, in `run`.

        Args:
            timeout: seconds of the loop's clock; 0 or less does not wait. None waits for ever.

        Returns:
            The message, or None if none came in time.

        Raises:
            RuntimeError: another task waits here already.
        """
        if self._stop_requested or self._fatal is not None:
            raise asyncio.CancelledError  # the cancellation itself may have got lost: see `_remind`
        if not self._inbox and (timeout is None or timeout > 0):
            await self._wait_for_arrival(timeout)
        return self._inbox.popleft() if self._inbox else None

    def monitor(self, other: SupervisedProcess) -> None:
        """Have a `Down` message sent to this actor when `other` ends; at once if it has ended already."""

        def down(process: SupervisedProcess, cause: BaseException | None) -> None:
            self._monitored.pop(process, None)
            self.cast(Down(process, cause))

        if other not in self._monitored:
            forget = other.on_exit(down)
            if not other.has_ended:
                self._monitored[other] = forget

    def demonitor(self, other: SupervisedProcess) -> None:
        """Undo `monitor`, for example before stopping the process on purpose."""
        if forget := self._monitored.pop(other, None):
            forget()

    def spawn_link(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` in a task linked to this actor: if either dies, both die. For use by the actor itself.

        If `work` raises, or its task is canceled from outside, the actor ends with that cause. If it returns, nothing
        happens. When the actor ends, `work` is canceled and has ended before `terminate` is called.

        Raises:
            ActorStopped: the actor is ending.
        """
        if self._ending or not self.is_alive:
            work.close()
            raise self._stopped()
        task = self._loop.create_task(work, name=f"{self.name}/{name}")
        self._linked.add(task)
        task.add_done_callback(self._linked_ended)
        return task

    async def _live(self) -> None:
        clean_up = False
        try:
            await self.init()
            clean_up = type(self).terminate is not Actor.terminate
            self._initialized()
            await self.run()
        finally:
            self._ending = True
            self.state = "stopping"
            if self._linked:
                await self._cancel_linked()
            if clean_up:
                await self._terminate()

    async def _cancel_linked(self) -> None:
        for task in self._linked:
            task.cancel()
        await self._finish(self._linked)

    async def _terminate(self) -> None:
        task = self._loop.create_task(self.terminate(), name=f"{self.name}/terminate")
        await self._finish([task])
        error = Killed(f"{task.get_name()} was canceled") if task.cancelled() else task.exception()
        if error is not None:
            log.error("terminate_failed", child=self.name, supervisor=self.supervisor, exc_info=error)
            if self._fatal is None:
                self._fatal = error

    async def _finish(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        """Wait for the end of tasks through cancellations, which after the shutdown time cancel the tasks as well."""
        self._remind()
        while pending := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError:
                if self._overdue:
                    for task in pending:
                        task.cancel()

    def _linked_ended(self, task: asyncio.Task[Any]) -> None:
        self._linked.discard(task)
        cause: BaseException | None
        if task.cancelled():
            cause = None if self._ending else Killed(f"linked task {task.get_name()!r} was canceled from outside")
        else:
            cause = task.exception()
        if cause is None:
            return
        if self._ending or self._fatal is not None:
            if isinstance(cause, StoreLost):  # the service itself reports it once
                return
            log.error("linked_task_failed", child=self.name, task=task.get_name(), exc_info=cause)
        else:
            cause.add_note(f"raised in {task.get_name()!r}, which is linked to actor {self.name!r}")
            self._kill(cause)

    async def _wait_for_arrival(self, timeout: float | None) -> None:
        if self._arrival is not None and not self._arrival.done():
            raise RuntimeError(f"two tasks wait for messages to actor {self.name!r}")
        self._arrival = arrival = self._loop.create_future()
        timer = None if timeout is None else self._loop.call_later(timeout, self._wake)
        try:
            await arrival
        finally:
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _stopped(self) -> ActorStopped:
        what = "has not been started" if self._task is None else "is ending" if self.is_alive else "has ended"
        stopped = ActorStopped(f"actor {self.name!r} {what}" + (f": {self.cause!r}" if self.cause is not None else ""))
        stopped.__cause__ = self.cause
        return stopped

    def _on_done(self, task: asyncio.Task[None]) -> None:
        super()._on_done(task)
        for forget in self._monitored.values():
            forget()
        self._monitored.clear()
