"""The actor: one task with an inbox, in the spirit of Erlang's gen_server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar

from jobs_service.errors import StoreLost
from jobs_service.supervision.process import ActorStopped, Killed, Kind, SupervisedProcess, UnknownMessage, log


@dataclass(slots=True)
class Message:
    """A message in an actor's inbox.

    Attributes:
        body: the argument of `call` or `cast`.
    """

    body: Any
    _reply: asyncio.Future[Any] | None = None

    def reply(self, value: Any) -> None:
        """Answer a `call`; no effect on a cast, an answered call, or a caller that has gone."""
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Answer a `call` with an error, which it raises while the actor lives on; else like `reply`."""
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)


@dataclass(frozen=True)
class Down:
    """The message that tells an actor about the end of a monitored process.

    Attributes:
        process: the ended process.
        cause: as `Process.cause`.
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
        self._inbox: deque[Message] = deque()
        self._arrival: asyncio.Future[None] | None = None
        # A set that keeps its order: callers get the end in the order of their requests.
        self._unanswered: dict[asyncio.Future[Any], None] = {}
        self._linked: set[asyncio.Task[Any]] = set()
        self._monitored: dict[SupervisedProcess, Callable[[], None]] = {}
        self._ending = False

    async def init(self) -> None:
        """Prepare, before the actor counts as started.

        If it raises, the start has failed and `terminate` is not called.
        """

    async def handle(self, message: Any) -> Any:
        """Handle a message; the return value answers a `call`, and an exception ends the actor.

        Raises:
            UnknownMessage: by default. Overriding methods pass unknown messages on to this one.
        """
        raise UnknownMessage(f"actor {self.name!r} does not know the message {message!r}")

    async def run(self) -> None:
        """Handle one message after the other. Override it for another main loop."""
        while True:
            message = await self.receive()
            if message is not None:
                message.reply(await self.handle(message.body))

    async def terminate(self) -> None:
        """Clean up, if `init` had succeeded; linked tasks have ended before. Must be short.

        Cancellation does not interrupt it before `shutdown` seconds have passed. An error is logged, and turns the
        actor's end into a failure.
        """

    async def call(self, message: Any) -> Any:
        """Send a request and return the actor's answer. Canceling the caller does no harm to the actor.

        Raises:
            ActorStopped: the actor ended before it answered; the cause is chained.
            RuntimeError: an actor calls itself, and would wait for ever.
        """
        if not self.is_alive:
            raise self._stopped()
        if self._task is asyncio.current_task():
            raise RuntimeError(f"actor {self.name!r} calls itself")
        reply = self._loop.create_future()
        self._unanswered[reply] = None
        self._deliver(Message(message, reply))
        try:
            return await reply
        finally:
            self._unanswered.pop(reply, None)

    def cast(self, message: Any) -> None:
        """Send a message without waiting. An ended actor drops it."""
        if self.is_alive:
            self._deliver(Message(message))

    async def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, in the order of sending; for the actor's own task, in `run`.

        Args:
            timeout: seconds of the loop's clock; 0 or less does not wait. None waits for ever.

        Returns:
            The message, or None if none came in time.

        Raises:
            RuntimeError: another task waits here already.
        """
        if self._stop_requested or self._fatal is not None:
            raise asyncio.CancelledError  # the cancellation itself may have got lost: see Process._remind
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
            self._initialised()
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

    def _deliver(self, message: Message) -> None:
        self._inbox.append(message)
        self._wake()

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
        for reply in self._unanswered:
            Message(None, reply).fail(self._stopped())
        for forget in self._monitored.values():
            forget()
        self._monitored.clear()
