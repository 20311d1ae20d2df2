"""Subscriptions to jobs, with the events that the subscribers have not taken yet; and waits for jobs, by subscriptions.

The hub belongs to the service, not to its supervisor tree: no restart of an actor ends a subscription.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from jobs_service.arguments import check_timeout, member
from jobs_service.durations import Duration
from jobs_service.errors import (
    OTHER_LOOP,
    InvalidJob,
    JobFailed,
    JobNotFound,
    JobsError,
    ServiceClosed,
    a_kind_of,
    anew,
    in_one_line,
    job_name,
    not_removed,
    shown,
)
from jobs_service.json_data import same
from jobs_service.model import JobEvent, JobId, JobState, JobType, Outcome, Removal
from jobs_service.model.enqueueing import Enqueueable

if TYPE_CHECKING:  # a client has no keys
    from jobs_service.layer.keyspace import TypeKeys

FINAL = frozenset({JobState.FINISHED, JobState.REMOVED})


class SubscribedJob:
    """One job of one subscription: a target of events.

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
        RecordDamaged: the job's record is unreadable.
        JobsError: the service was closed or failed, or was opened on another event loop.
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


# Waiting


_LONGEST_MESSAGE: Final = 200
"""Characters of a job's error in the message of JobFailed."""
_MOMENT: Final = 0.05
"""Seconds that a removal gets even with a timeout of zero."""


async def wait(
    subscribe: Callable[[JobType, JobId], Subscription],
    type: JobType,
    id: JobId,
    states: Collection[JobState | str],
    timeout: Duration | None,
) -> JobEvent:
    """Wait until a job is in one of these states; see JobsService.wait."""
    wanted = {_event_state(state) for state in states}
    event: JobEvent | None = None
    seconds = check_timeout(timeout)
    try:
        async with asyncio.timeout(seconds), subscribe(type, id) as events:
            async for now in events:
                if now.state in wanted or (not wanted and (event is not None or now.state in FINAL)):
                    return now
                event = now
    except TimeoutError:
        raise _not_in_time(type, id, wanted, seconds, event) from None
    assert event is not None
    raise JobsError(
        f"job {job_name(type, id)} ended as {event.state.value}, without being {' or '.join(sorted(wanted))}",
        type=type,
        id=id,
    )


async def result(
    subscribe: Callable[[JobType, JobId], Subscription], type: Any, id: JobId, timeout: Duration | None
) -> Any:
    """Wait until a job has finished, and return its result; see JobsService.result."""
    handler = type if isinstance(type, Enqueueable) else None
    if handler is not None:
        type = handler.type
    event = await wait(subscribe, type, id, (JobState.FINISHED, JobState.REMOVED), timeout)
    if event.state is JobState.REMOVED:
        raise JobNotFound(f"job {job_name(type, id)} was removed", type=type, id=id)
    if event.outcome is Outcome.SUCCEEDED:
        return event.result if handler is None else _decoded(handler, id, event.result)
    raise _job_failed(event)


async def stop_and_remove(
    remove: Callable[[JobType, JobId], Awaitable[Removal]],
    not_running: Callable[[JobType, JobId], Awaitable[None]],
    type: JobType,
    id: JobId,
    timeout: Duration | None,
) -> None:
    """Remove a job; if it runs, wait until its worker has finished it; see JobsService.stop_and_remove.

    Args:
        remove: removes the job, or cancels it while it runs.
        not_running: waits until the job does not run; may raise JobNotFound.
        type, id, timeout: as there.
    """
    seconds = check_timeout(timeout)
    removal: Removal | None = None
    try:
        # Even without time to wait the removal itself gets a moment.
        async with asyncio.timeout(None if seconds is None else max(seconds, _MOMENT)):
            removal = await remove(type, id)
            while removal is Removal.CANCELED:
                try:
                    await not_running(type, id)
                    removal = await remove(type, id)
                except JobNotFound:
                    return
    except TimeoutError:
        raise not_removed(type, id, seconds, removal is not None) from None


def checked_pairs(jobs: Any) -> Iterator[tuple[JobType, JobId]]:
    """Yield type and id of each of the jobs to subscribe to."""
    try:
        pairs = iter(jobs)
    except TypeError:
        raise InvalidJob(f"jobs {shown(jobs)}: {a_kind_of(jobs)}; pairs of type and id, in any iterable") from None
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidJob(f"job {shown(pair)}: {a_kind_of(pair)}; it must be a pair of type and id")
        yield pair[0], pair[1]


def _decoded(handler: Enqueueable[Any, Any], id: JobId, result: Any) -> Any:
    try:
        return handler.result(result)
    except InvalidJob as refusal:
        raise InvalidJob(f"the result of job {job_name(handler.type, id)}: {refusal}").about(handler.type, id) from None


def _event_state(state: Any) -> JobState:
    """Parse the state of an event."""
    found = member(JobState, state)
    if found is None or found is JobState.UNREADABLE:
        allowed = ", ".join(repr(str(each)) for each in JobState if each is not JobState.UNREADABLE)
        raise InvalidJob(f"state {shown(state)}: allowed are {allowed}")
    return found


def _job_failed(event: JobEvent) -> JobFailed:
    """Return the error for a job that ended without success."""
    assert event.outcome is not None
    why = "" if event.error is None else f": {event.error.type}: {in_one_line(event.error.message, _LONGEST_MESSAGE)}"
    return JobFailed(
        f"job {job_name(event.type, event.id)} ended as {event.outcome.value}{why}",
        type=event.type,
        id=event.id,
        outcome=event.outcome.value,
        error=event.error,
    )


def _not_in_time(
    type: JobType, id: JobId, wanted: Collection[JobState], seconds: float | None, event: JobEvent | None
) -> TimeoutError:
    """Return the error for a job that reached none of the wanted states in time; `event` is its last event."""
    # `result` waits for FINISHED and REMOVED; the message need not mention REMOVED.
    states = {*wanted} - {JobState.REMOVED} or wanted
    missing = f"was not {' or '.join(sorted(states))}" if states else "did not change"
    state = "" if event is None else f"; it is {event.state.value}"
    return TimeoutError(f"job {job_name(type, id)} {missing} within {seconds} s{state}")
