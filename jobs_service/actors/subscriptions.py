"""Subscriptions to jobs, with the events that the subscribers have not taken yet.

The hub belongs to the service, not to its supervisor tree: no restart of an actor ends a subscription.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from jobs_service.errors import OTHER_LOOP, JobsError, ServiceClosed, anew
from jobs_service.json_data import same
from jobs_service.model import JobEvent, JobId, JobState

if TYPE_CHECKING:  # a client has no keys
    from jobs_service.layer.keyspace import TypeKeys

FINAL = frozenset({JobState.FINISHED, JobState.REMOVED})


class SubscribedJob:
    """One job of one subscription.

    Attributes:
        keys, id: the job.
        reported: the newest event that was put into the mailbox, None before the first.
        raw: the stored record of that event.
        taken: the newest event that the subscriber has taken.
        ended: whether the last event, or an error, is in the mailbox.
        number: of the target in the hub, from 1; 0 before the hub has it.
    """

    __slots__ = ("data_key", "ended", "id", "keys", "mailbox", "number", "raw", "reported", "taken")

    def __init__(self, keys: TypeKeys, id: JobId, mailbox: Mailbox) -> None:
        self.keys = keys
        self.id = id
        self.data_key = keys.data_key(id)
        self.mailbox = mailbox
        self.reported: JobEvent | None = None
        self.raw: bytes | None = None
        self.taken: JobEvent | None = None
        self.ended = False
        self.number = 0

    @property
    def knows_it(self) -> bool:
        """Whether the subscriber got an event of the job before."""
        return self.reported is not None

    def report(self, event: JobEvent) -> None:
        """Put an event into the mailbox, replacing an untaken one."""
        self.reported = event
        self.ended = event.state in FINAL
        self.mailbox.put(self, event)

    def fail(self, error: JobsError) -> None:
        """End the target with an error."""
        self.ended = True
        self.mailbox.put(self, error)


class Mailbox:
    """The newest untaken event of each target of one subscription, and never more.

    Several tasks may take from it: each event goes to one of them, and the end to all.
    """

    __slots__ = ("_arrivals", "_newest", "_order", "open_targets")

    def __init__(self) -> None:
        self._newest: dict[SubscribedJob, JobEvent | JobsError] = {}
        self._order: deque[SubscribedJob] = deque()
        self._arrivals: list[asyncio.Future[None]] = []
        self.open_targets = 0

    def put(self, target: SubscribedJob, event: JobEvent | JobsError) -> None:
        """Keep the target's newest event and wake the subscriber."""
        if target not in self._newest:
            self._order.append(target)
        elif isinstance(event, JobEvent) and target.taken is not None and is_same(event, target.taken):
            # The job is in the subscriber's last state again: an event would only repeat it.
            del self._newest[target]
            self._order.remove(target)
            return
        self._newest[target] = event
        self._wake()

    def close(self) -> None:
        """End after the present events; wake the tasks that wait for more."""
        self.open_targets = 0
        self._wake()

    @property
    def has_news(self) -> bool:
        """Whether the next event is there already."""
        return bool(self._order)

    async def take(self) -> JobEvent | None:
        """Return the next event; None when every target has ended.

        Raises:
            JobsError: a target ended with this error.
        """
        news = await self.take_news()
        if news is None:
            return None
        if isinstance(news[1], JobsError):
            raise news[1]
        return news[1]

    async def take_news(self) -> tuple[SubscribedJob, JobEvent | JobsError] | None:
        """Return the next event or error, with its target; None when every target has ended."""
        while not self._order:
            if self.open_targets == 0:
                return None
            arrival = asyncio.get_running_loop().create_future()
            self._arrivals.append(arrival)
            try:
                await arrival
            finally:
                self._arrivals.remove(arrival)
        target = self._order.popleft()
        event = self._newest.pop(target)
        if target.ended and self.open_targets:  # none are open any more once it was closed
            self.open_targets -= 1
            if self.open_targets == 0:
                self._wake()
        if isinstance(event, JobEvent):
            target.taken = event
        return target, event

    def _wake(self) -> None:
        for arrival in self._arrivals:
            if not arrival.done() and not arrival.get_loop().is_closed():
                arrival.set_result(None)


def other_loop() -> JobsError:
    """Return the error for a call on another event loop than the service's own."""
    return JobsError(f"the service {OTHER_LOOP}")


def is_same(event: JobEvent, other: JobEvent) -> bool:
    """Whether two events mean the same to a subscriber."""
    return (
        event.state is other.state
        and event.outcome is other.outcome
        and event.error == other.error
        and event.attempts == other.attempts
        and event.run_at == other.run_at
        and same(_progress_of(event), _progress_of(other))
        and same(event.data, other.data)
        and same(event.result, other.result)
    )


def _progress_of(event: JobEvent) -> tuple[Any, ...] | None:
    progress = event.progress
    return None if progress is None else (progress.done, progress.total, progress.message, progress.attempt)


class Hub:
    """All subscriptions of one service, by type and job.

    Attributes:
        added: number of targets added so far.
    """

    def __init__(self) -> None:
        # Mappings to None serve as sets that keep their order, so that a simulated run can be repeated.
        self._targets: dict[TypeKeys, dict[bytes, dict[SubscribedJob, None]]] = {}
        self._fresh: dict[TypeKeys, dict[bytes, None]] = {}
        self._listeners: dict[TypeKeys, Callable[[], None]] = {}
        self.added = 0
        self._start_notifier: Callable[[TypeKeys], None] | None = None
        self._failure: JobsError | None = ServiceClosed("the service is not open: enter it with `async with`")
        self._thread = 0
        self._is_changing = False

    def types(self) -> list[TypeKeys]:
        """Return the types that have subscriptions."""
        return list(self._targets)

    def targets(self, keys: TypeKeys) -> dict[bytes, dict[SubscribedJob, None]]:
        """Return a type's targets by DATA key."""
        return self._targets.get(keys, {})

    def take_fresh(self, keys: TypeKeys) -> list[bytes]:
        """Return the DATA keys of a type's jobs with subscriptions since the last call."""
        return [*self._fresh.pop(keys, ())]

    def open(self) -> None:
        """Accept subscriptions from now on, on the running event loop."""
        self._failure = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def check_loop(self) -> None:
        """Raise JobsError on another event loop than the service's, where nothing could wake a waiting task."""
        if self._failure is None and self._loop is not asyncio.get_running_loop():
            raise other_loop()

    def close(self, error: JobsError) -> None:
        """End all present and later subscriptions with this error."""
        self._failure = error
        for by_key in list(self._targets.values()):
            for targets in list(by_key.values()):
                for target in list(targets):
                    target.fail(anew(error))
        self._targets.clear()
        self._fresh.clear()

    def listen(self, keys: TypeKeys, listener: Callable[[], None] | None) -> None:
        """Set the function to call when the type has new subscriptions; None when its notifier ends."""
        if listener is None:
            self._listeners.pop(keys, None)
        else:
            self._listeners[keys] = listener

    def on_missing_notifier(self, start: Callable[[TypeKeys], None] | None) -> None:
        """Set the function that starts a notifier for a type without one; None when there is no type server."""
        self._start_notifier = start

    def add(self, targets: Sequence[SubscribedJob]) -> None:
        """Begin to report on the jobs of these targets.

        Raises:
            JobsError: the service is closed, failed, or has no supervisor tree.
        """
        if self._failure is not None:
            raise anew(self._failure)
        with self._changing():
            for target in targets:
                self.added += 1
                target.number = self.added
                self._targets.setdefault(target.keys, {}).setdefault(target.data_key, {})[target] = None
                self._fresh.setdefault(target.keys, {})[target.data_key] = None
        for keys in {target.keys: None for target in targets}:
            listener = self._listeners.get(keys)
            if listener is not None:
                listener()
            elif self._start_notifier is not None:
                self._start_notifier(keys)

    def discard(self, target: SubscribedJob) -> None:
        """Forget a target; a missing one is no error."""
        with self._changing():
            by_key = self._targets.get(target.keys)
            if by_key is None:
                return
            targets = by_key.get(target.data_key)
            if targets is not None:
                targets.pop(target, None)
                if not targets:
                    del by_key[target.data_key]
            if not by_key:
                del self._targets[target.keys]
                self._fresh.pop(target.keys, None)

    def forget(self, targets: Sequence[SubscribedJob]) -> None:
        """Discard the targets of a subscription that is garbage.

        The garbage collector calls this on any thread and at any point, even within `add`: then the targets are
        discarded later, on the loop.
        """
        if threading.get_ident() == self._thread and not self._is_changing:
            for target in targets:
                self.discard(target)
        else:
            with contextlib.suppress(RuntimeError):  # a closed loop: no subscriber is left
                self._loop.call_soon_threadsafe(self.forget, targets)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        self._is_changing = True
        try:
            yield
        finally:
            self._is_changing = False


class Subscription:
    """The events of one job, or of several: an async iterator, and a context manager that ends it at once.

    The first event of a job is its present state; the last is `finished` or `removed`, and is never missed. In between,
    bursts are merged: a slow subscriber gets the newest state. Several tasks may iterate over it: each event goes to
    one of them, and all end when it ends.

    Raises while iterating:
        JobNotFound: there is no such job.
        RecordDamaged: the job's record is unreadable. JobsError: the service was closed or failed, or was opened on
        another event loop.
    """

    def __init__(self, hub: Hub, jobs: Sequence[tuple[TypeKeys, JobId]]) -> None:
        self._hub = hub
        self._mailbox = Mailbox()
        self._targets = [SubscribedJob(keys, id, self._mailbox) for keys, id in jobs]
        self._begun = False
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> JobEvent:
        self._begin()
        event = await self._mailbox.take()
        if event is None:
            self.close()
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription; an iterator ends after the present events."""
        for target in self._targets:
            self._hub.discard(target)
        self._mailbox.close()
        self._begun = self._is_closed = True

    def __del__(self) -> None:
        # A `break` out of `async for` calls nothing: only the end of the object tells that the subscriber has gone.
        if self._begun and not self._is_closed:
            self._hub.forget(self._targets)

    def _begin(self) -> None:
        self._hub.check_loop()
        if not self._begun:
            self._begun = True
            self._hub.add(self._targets)
            self._mailbox.open_targets = len(self._targets)
