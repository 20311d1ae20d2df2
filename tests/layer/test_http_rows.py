"""What the HTTP interface keeps beside the jobs."""

from __future__ import annotations

import time

import fdb.tuple
import pytest

from jobs_service import JobExists, JobsService, NewJob
from jobs_service.layer import rows
from jobs_service.layer.rows import KEPT_FOR, RepeatableRequest, Repeated
from jobs_service.model import Job
from jobs_service.sources import Sources
from tests.copying.support import everything


async def test_a_request_is_known_for_a_day_and_forgotten_by_those_that_follow() -> None:
    ahead = 0.0
    async with JobsService("memory:", sources=Sources(wall_time=lambda: time.time() + ahead)) as jobs:
        await jobs.set_type_timeout("email", 30)
        again = RepeatableRequest("first", b"print")
        assert isinstance(await jobs.remote.add_once(again, "email", "a", 1), Job)
        assert await jobs.remote.add_once(again, "email", "a", 1) == Repeated("a")
        assert await jobs.remote.add_once(RepeatableRequest("first", b"other"), "email", "b", 1) == Repeated(None)
        # Within another type the key is another one.
        await jobs.set_type_timeout("other", 30)
        assert isinstance(await jobs.remote.add_once(again, "other", "a", 1), Job)
        ahead = KEPT_FOR + 1
        await jobs.remote.add_once(RepeatableRequest("second", b"print"), "email", "c", 1)
        requests = fdb.tuple.pack((rows.REQUESTS,))
        assert len([key for key in await everything(jobs.store) if key.startswith(requests)]) == 1


async def test_a_key_is_as_any_other_when_its_day_is_over() -> None:
    ahead = 0.0
    async with JobsService("memory:", sources=Sources(wall_time=lambda: time.time() + ahead)) as jobs:
        await jobs.set_type_timeout("email", 30)
        assert isinstance(await jobs.remote.add_once(RepeatableRequest("key", b"print"), "email", "a", 1), Job)
        ahead = KEPT_FOR - 60
        assert await jobs.remote.add_once(RepeatableRequest("key", b"print"), "email", "a", 1) == Repeated("a")
        ahead = 100 * KEPT_FOR
        other = RepeatableRequest("key", b"other")
        assert isinstance(await jobs.remote.add_once(other, "email", "b", 1), Job)
        many = [NewJob("c"), NewJob("d")]
        assert isinstance(await jobs.remote.add_many_once(RepeatableRequest("list", b"print"), "email", many), list)
        # What has become of the first day's row is nothing to the second one's.
        assert await jobs.remote.add_once(other, "email", "b", 1) == Repeated("b")
        ahead += KEPT_FOR + 1
        again = [NewJob("e")]
        assert isinstance(await jobs.remote.add_many_once(RepeatableRequest("list", b"print"), "email", again), list)


async def test_a_request_that_was_refused_is_not_known() -> None:
    async with JobsService("memory:") as jobs:
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a")
        request = RepeatableRequest("key", b"print")
        with pytest.raises(JobExists):
            await jobs.remote.add_once(request, "email", "a", 1)
        await jobs.remove("email", "a")
        assert isinstance(await jobs.remote.add_once(request, "email", "a", 1), Job)
