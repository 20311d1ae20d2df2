"""What waits for a client that is slow: the newest state of each job, and no more."""

from __future__ import annotations

from typing import Any

from jobs_service import JobEvent, JobsService
from jobs_service.http.streams import END, HEARTBEAT, RESET, Frames, JobTarget, Stream
from jobs_service.http.wire import event as form_of
from jobs_service.model import JobState, Outcome


def event(state: JobState, data: Any = None) -> JobEvent:
    outcome = Outcome.SUCCEEDED if state is JobState.FINISHED else None
    return JobEvent("email", "a", state, data, outcome, bytes(12))


async def form(event: JobEvent) -> dict[str, Any]:
    return form_of(event)


async def target(stream: Stream) -> JobTarget:
    async with JobsService("memory:") as jobs:
        keys = jobs._context.keyspace.of("email")
    return JobTarget(keys, "a", stream, Frames(form), is_alone=False)


async def told(stream: Stream) -> bytes:
    part = await stream.next(0.01)
    assert part is not None
    return part


async def test_a_slow_client_gets_the_newest_state_alone() -> None:
    stream = Stream("")
    stream.expect(1)
    job = await target(stream)
    for number in range(1000):
        job.raw = b"%d" % number
        job.report(event(JobState.RUNNING, number))
    part = await told(stream)
    assert part.count(b"event: job") == 1
    assert b'"data":999' in part
    assert await told(stream) == HEARTBEAT


async def test_what_is_again_as_the_client_knows_it_is_not_told() -> None:
    stream = Stream("")
    stream.expect(1)
    job = await target(stream)
    job.raw = b"1"
    job.report(event(JobState.PENDING))
    assert b'"pending"' in await told(stream)
    job.raw = b"2"
    job.report(event(JobState.RUNNING))
    job.raw = b"3"
    job.report(event(JobState.PENDING))
    assert await told(stream) == HEARTBEAT
    job.raw = b"4"
    job.report(event(JobState.FINISHED))
    assert b'"finished"' in await told(stream)
    assert await told(stream) == END
    assert await stream.next(0.01) is None


async def test_a_client_that_is_far_behind_a_type_is_told_to_look_anew() -> None:
    stream = Stream("")
    for number in range(1001):
        stream.put_change(number, b"x" * 100)
    stream.put_last("mark", b"mark")
    assert await told(stream) == RESET + b"mark"


async def test_a_stream_that_is_ended_tells_nothing() -> None:
    stream = Stream("")
    stream.put("about", b"x")
    stream.end()
    assert await stream.next(0.01) is None
