"""Waiting for jobs: until one is in a state, has a result, or is removed; a service and a client wait the same way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any, Final

from jobs_service.actors.subscriptions import FINAL, Subscription
from jobs_service.arguments import check_timeout, member
from jobs_service.durations import Duration
from jobs_service.errors import (
    InvalidJob,
    JobFailed,
    JobNotFound,
    JobsError,
    a_kind_of,
    in_one_line,
    job_name,
    not_removed,
    shown,
)
from jobs_service.model import JobEvent, JobId, JobState, JobType, Outcome, Removal
from jobs_service.model.enqueueing import Enqueueable

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
    timeout: Duration,
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
