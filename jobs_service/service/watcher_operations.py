"""A service's operations to wait for jobs: subscriptions, `wait` and `result`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, overload

from jobs_service.actors.subscriptions import FINAL, Hub, Subscription
from jobs_service.arguments import check_timeout, member
from jobs_service.durations import Duration
from jobs_service.errors import InvalidJob, JobFailed, JobNotFound, JobsError, a_kind_of, in_one_line, job_name, shown
from jobs_service.model import EndedJob, JobEvent, JobId, JobState, JobType, Outcome
from jobs_service.model.enqueueing import Enqueueable, ResultT

if TYPE_CHECKING:  # a client waits without a store
    from jobs_service.layer.keyspace import TypeKeys
    from jobs_service.service.lifecycle import Lifecycle
    from jobs_service.service.store_access import StoreAccess

_LONGEST_MESSAGE: Final = 200
"""Characters of a job's error in the message of JobFailed."""


class WatcherOperations:
    """The part of JobsService for watchers of jobs."""

    _access: StoreAccess
    _hub: Hub
    _lifecycle: Lifecycle

    def subscribe(self, type: JobType, id: JobId) -> Subscription:
        """Return the events of a job: an async iterator, which `async with` closes at its end.

        Raises:
            InvalidJob: an invalid type or id.
            JobsError: the service has no supervisor tree.
        """
        return self.subscribe_many([(type, id)])

    def subscribe_many(self, jobs: Iterable[tuple[JobType, JobId]]) -> Subscription:
        """Return the events of several jobs as one iterator; it ends when every one of them has ended.

        Raises:
            InvalidJob: an invalid type or id.
            JobsError: the service has no supervisor tree.
        """
        if not self._lifecycle.supervised:
            raise JobsError("subscribing needs the supervisor tree: open the service without supervise=False")
        wanted: dict[tuple[TypeKeys, JobId], None] = {}
        for type, id in checked_pairs(jobs):
            keys, checked, _ = self._access.place(type, id)
            wanted[keys, checked] = None
        return Subscription(self._hub, [*wanted])

    async def wait(
        self, type: JobType, id: JobId, *states: JobState | str, timeout: Duration | None = None
    ) -> JobEvent:
        """Wait until a job is in one of these states.

        Args:
            type, id: the job.
            states: states to wait for; none to wait for the job's next change (returns at once for a finished job,
                which does not change by itself).
            timeout: a duration; None for ever.

        Returns:
            The event with the state.

        Raises:
            TimeoutError: the job did not reach a state in time.
            JobNotFound: there is no such job.
            RecordDamaged: its record is unreadable.
            JobsError: the job ended without reaching any of the states.
        """
        return await reached(self.subscribe(type, id), type, id, states, timeout)

    @overload
    async def result(
        self, type: Enqueueable[Any, EndedJob[ResultT]], id: JobId, *, timeout: Duration | None = None
    ) -> ResultT: ...

    @overload
    async def result(
        self, type: Enqueueable[Any, ResultT | EndedJob[ResultT]], id: JobId, *, timeout: Duration | None = None
    ) -> ResultT: ...

    @overload
    async def result(self, type: JobType, id: JobId, *, timeout: Duration | None = None) -> Any: ...

    async def result(self, type: Any, id: JobId, *, timeout: Duration | None = None) -> Any:
        """Wait until a job has finished, and return its result.

        Args:
            type: of the job, or its handler.
            id: of the job.
            timeout: a duration; None for ever.

        Returns:
            The result: decoded by the handler's annotation, or JSON data if `type` is a type.

        Raises:
            InvalidJob: the result does not match the handler's annotation.
            JobFailed: the job failed or was canceled; carries the stored error.
            JobNotFound: there is no such job, or it was removed meanwhile.
            TimeoutError: the job did not finish in time.
        """
        return await result_of(self.wait, type, id, timeout)


async def reached(
    events: Subscription, type: JobType, id: JobId, states: Iterable[JobState | str], timeout: Duration | None
) -> JobEvent:
    """Return the first event of a job in one of these states; arguments and errors as of JobsService.wait.

    Args:
        events: the subscription of the job, which is closed.
        type, id, states, timeout: as for JobsService.wait.
    """
    wanted = {_event_state(state) for state in states}
    event: JobEvent | None = None
    seconds = check_timeout(timeout)
    try:
        async with asyncio.timeout(seconds), events:
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


async def result_of(wait: Callable[..., Awaitable[JobEvent]], type: Any, id: JobId, timeout: Duration | None) -> Any:
    """Return the result of a job once it has finished; arguments and errors as of JobsService.result.

    Args:
        wait: JobsService.wait, or a client's.
        type, id, timeout: as for JobsService.result.
    """
    handler = type if isinstance(type, Enqueueable) else None
    if handler is not None:
        type = handler.type
    event = await wait(type, id, JobState.FINISHED, JobState.REMOVED, timeout=timeout)
    if event.state is JobState.REMOVED:
        raise JobNotFound(f"job {job_name(type, id)} was removed", type=type, id=id)
    if event.outcome is Outcome.SUCCEEDED:
        return event.result if handler is None else _decoded(handler, id, event.result)
    raise _job_failed(event)


def _decoded(handler: Enqueueable[Any, Any], id: JobId, result: Any) -> Any:
    try:
        return handler.result(result)
    except InvalidJob as refusal:
        raise InvalidJob(f"the result of job {job_name(handler.type, id)}: {refusal}").about(handler.type, id) from None


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
