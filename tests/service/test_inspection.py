"""What operators ask of types: where a queue stands, how long jobs are kept, when periodic types ticked last."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest

from jobs_service import JobsService, QueueState, Retention
from jobs_service.model import Priority
from tests.service.support import FAR_AWAY, T1, T2
from tests.service.unreadable import damage, with_broken_notes
from tests.stores import QUICKEST_AND_CLUSTER, one_of

# What they do is above the stores, which keep their contract: one, and the cluster, are enough.
store_kind = one_of(QUICKEST_AND_CLUSTER)


async def test_a_queue_without_jobs_stands_nowhere(quiet: JobsService) -> None:
    assert await quiet.queue_state(T1) == QueueState(None, None, None, False)
    await quiet.pause("nosuch")
    assert await quiet.queue_state("nosuch") == QueueState(None, None, None, True)


async def test_the_oldest_ready_job_is_found_whatever_its_priority(quiet: JobsService) -> None:
    before = time.time()
    priorities: list[Priority] = [7, 7, ("a", 1), b"x", "text", -(2**70), 0]
    for number, priority in enumerate(priorities):
        await quiet.add(T1, f"{number}", priority=priority)
    state = await quiet.queue_state(T1)
    assert state.id == "0"
    assert state.ready_since is not None
    assert before - 1 <= state.ready_since <= time.time() + 1
    job = await quiet.accept(T1, timeout=0, max_priority=7)
    assert job is not None
    assert (await quiet.queue_state(T1)).id == "0"
    await quiet.remove(T1, "0")
    assert (await quiet.queue_state(T1)).id == "1"


def with_no_time(raw: bytes) -> bytes:
    """The time of the newest event is none."""
    return raw[:-9] + struct.pack(">d", float("nan")) + raw[-1:]


@pytest.mark.parametrize("how", [with_broken_notes, with_no_time])
async def test_a_job_with_a_damaged_history_is_one_that_does_not_tell_since_when_it_waits(
    quiet: JobsService, how: Callable[[bytes], bytes]
) -> None:
    await quiet.add(T1, "damaged")
    await damage(quiet, "damaged", how)
    assert await quiet.queue_state(T1) == QueueState("damaged", None, None, False)
    await quiet.add(T1, "behind")
    state = await quiet.queue_state(T1)
    assert state.id == "behind"
    assert state.ready_since is not None


async def test_the_next_scheduled_job_is_told(quiet: JobsService) -> None:
    await quiet.add(T1, "later", run_at=FAR_AWAY)
    state = await quiet.queue_state(T1)
    assert (state.id, state.ready_since) == (None, None)
    assert state.next_scheduled is not None
    assert state.next_scheduled > time.time()


async def test_retention_is_what_was_set(quiet: JobsService) -> None:
    assert await quiet.get_retention(T1) == Retention(None, None)
    await quiet.set_retention(T1, keep=60)
    assert await quiet.get_retention(T1) == Retention(60.0, None)
    assert await quiet.get_retention(T2) == Retention(None, None)


async def test_nothing_has_ticked_where_nobody_is_periodic(quiet: JobsService) -> None:
    assert await quiet.last_ticks() == {}
    assert quiet.periodic == {}
