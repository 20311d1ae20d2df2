"""Jobs and events as plain data for JSON, events that tell of attempts and the next run, and values that look alike."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from jobs_service import JobEvent, JobsService, JobTransaction, Outcome
from jobs_service.actors.subscriptions import Mailbox, SubscribedJob
from jobs_service.model import JobState
from tests.runner.support import opened, running
from tests.service.support import FAR_AWAY, T1, accepted
from tests.stores import QUICKEST_AND_CLUSTER, one_of
from tests.virtual_time import in_virtual_time

# What they do is above the stores, which keep their contract: one, and the cluster, are enough.
store_kind = one_of(QUICKEST_AND_CLUSTER)


@pytest.mark.parametrize("id", ["a", b"\xff\x00"])
async def test_a_job_is_plain_data_that_every_json_encoder_takes(quiet: JobsService, id: Any) -> None:
    await quiet.set_type_timeout(("a", 1, b"b"), 60)
    added = await quiet.add(("a", 1, b"b"), id, {"x": [1]}, priority=("p", 2), run_at=FAR_AWAY)
    plain = added.to_dict()
    assert json.loads(json.dumps(plain)) == plain == msgspec.json.decode(msgspec.json.encode(plain))
    assert plain["type"] == ["a", 1, {"bytes": "62"}]
    assert plain["id"] == ("a" if id == "a" else {"bytes": "ff00"})
    assert (plain["state"], plain["outcome"], plain["data"], plain["priority"]) == (
        "pending",
        None,
        {"x": [1]},
        ["p", 2],
    )
    assert datetime.fromisoformat(plain["run_at"]) == datetime.fromtimestamp(FAR_AWAY, UTC)
    assert plain["run_at"].endswith("Z")
    assert [event["kind"] for event in plain["history"]] == ["added"]


@in_virtual_time
async def test_events_tell_of_attempts_and_of_the_next_run() -> None:
    async with opened() as jobs:
        tried: list[int] = []

        @jobs.handler("work", backoff=30, jitter=0, max_attempts=3)
        async def work() -> None:
            tried.append(1)
            await asyncio.sleep(1)
            if len(tried) < 3:
                raise ValueError("the same again")

        async with running(jobs):
            job = await jobs.enqueue(work)
            events = [event async for event in jobs.subscribe("work", job.id)]
        crashed = [event for event in events if event.error and event.state is JobState.PENDING]
        assert [event.attempts for event in crashed] == [1, 2]
        first, second = (event.run_at for event in crashed)
        assert first is not None
        assert second is not None
        # The second pause, 60 s, begins a run of a second after the end of the first.
        assert (second - first).total_seconds() == pytest.approx(61, abs=0.1)
        assert (events[-1].attempts, events[-1].run_at) == (3, None)


def test_an_event_that_differs_only_for_json_is_not_taken_for_the_one_before() -> None:
    mailbox = Mailbox()
    target = SubscribedJob.__new__(SubscribedJob)
    target.ended = False
    target.taken = JobEvent("t", "i", JobState.RUNNING, {"a": 0}, None, b"1")
    mailbox.put(target, JobEvent("t", "i", JobState.RUNNING, {"a": 1}, None, b"2"))
    mailbox.put(target, JobEvent("t", "i", JobState.RUNNING, {"a": False}, None, b"3"))
    assert list(mailbox._order) == [target]
    mailbox.put(target, JobEvent("t", "i", JobState.RUNNING, {"a": 0}, None, b"4"))
    assert not mailbox._order


async def test_jobs_are_listed_by_the_word_for_what_they_do(quiet: JobsService) -> None:
    for outcome in Outcome:
        await quiet.add(T1, outcome.value)
        await (await accepted(quiet, T1)).finish(outcome=outcome)
    await quiet.add(T1, "running")
    await accepted(quiet, T1)
    await quiet.add(T1, "ready")
    await quiet.add(T1, "scheduled", run_at=FAR_AWAY)
    for word in ("ready", "scheduled", "running", "succeeded", "failed", "canceled"):
        assert [job.id async for job in quiet.list(T1, state=word)] == [word]

    async def read_and_write(tx: JobTransaction) -> None:
        await tx.resubmit(T1, "failed")
        await tx.remove(T1, "succeeded")
        assert [job.id for job in await tx.list(T1, state="ready")] == ["failed", "ready"]
        assert [job.id for job in await tx.list(T1, state="canceled")] == ["canceled"]
        assert await tx.list(T1, state="succeeded") == []

    await quiet.transact(read_and_write)
