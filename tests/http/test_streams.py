"""What waits for a client that is slow: the newest state of each job, and no more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service import JobEvent, JobsService, StoreUnavailable
from jobs_service.http.streams import END, HEARTBEAT, RESET, Frames, JobTarget, Stream
from jobs_service.model import JobState, Outcome


def event(state: JobState, data: Any = None) -> JobEvent:
    outcome = Outcome.SUCCEEDED if state is JobState.FINISHED else None
    return JobEvent("email", "a", state, data, outcome, bytes(12))


async def form(event: JobEvent) -> dict[str, Any]:
    return event.to_dict()


async def target(stream: Stream, frames: Frames | None = None) -> JobTarget:
    async with JobsService("memory:") as jobs:
        keys = jobs._context.keyspace.of("email")
    found = JobTarget(keys, "a", stream, Frames(form) if frames is None else frames, is_alone=False)
    stream.expect([found])
    return found


async def told(stream: Stream) -> bytes:
    part = await stream.next(0.01)
    assert part is not None
    return part


async def test_a_slow_client_gets_the_newest_state_alone() -> None:
    stream = Stream("")
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
    last = await told(stream)
    assert b'"finished"' in last
    assert last.endswith(END)
    assert stream.is_over
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


async def test_an_event_is_made_once_for_all_who_wait_and_each_has_it_with_the_end_at_its_first_turn() -> None:
    frames = Frames(form)
    streams = [Stream("") for _ in range(50)]
    jobs = [await target(stream, frames) for stream in streams]
    waiting = [asyncio.create_task(stream.next(60)) for stream in streams]
    await asyncio.sleep(0)
    for job in jobs:
        job.raw = b"1"
        job.report(event(JobState.FINISHED))
    parts = await asyncio.gather(*waiting)
    assert frames.made == 1
    assert len(set(parts)) == 1
    assert parts[0] is not None
    assert b'"finished"' in parts[0]
    assert parts[0].endswith(END)
    assert all(stream.is_over for stream in streams)


async def test_who_waits_is_told_what_is_newest_when_the_bytes_are_there() -> None:
    go_on = asyncio.Event()

    async def slow(event: JobEvent) -> dict[str, Any]:
        await go_on.wait()
        return event.to_dict()

    stream = Stream("")
    job = await target(stream, Frames(slow))
    waiting = asyncio.create_task(stream.next(60))
    await asyncio.sleep(0)
    for number in range(3):
        job.raw = b"%d" % number
        job.report(event(JobState.RUNNING, number))
    go_on.set()
    part = await waiting
    assert part is not None
    assert b'"data":2' in part
    assert part.count(b"event: job") == 1
    assert await told(stream) == HEARTBEAT


async def test_who_waits_hears_that_the_bytes_cannot_be_made() -> None:
    fails = True

    async def away(event: JobEvent) -> dict[str, Any]:
        if fails:
            raise StoreUnavailable("away")
        return event.to_dict()

    stream = Stream("")
    job = await target(stream, Frames(away))
    waiting = asyncio.create_task(stream.next(60))
    await asyncio.sleep(0)
    job.raw = b"1"
    job.report(event(JobState.RUNNING))
    with pytest.raises(StoreUnavailable):
        await waiting
    fails = False
    job.report(event(JobState.RUNNING, 2))
    assert b'"data":2' in await told(stream)
