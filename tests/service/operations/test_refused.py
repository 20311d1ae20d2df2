"""What no job can have: data, priorities, times, ids and types."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any

import pytest

from jobs_service import InvalidJob, JobsClient, JobsService, JobState, NewJob, Removal
from tests.service.support import FAR_AWAY, FAR_DATE, J2, T1, accepted, contents, listed, running
from tests.stores import QUICKEST_AND_CLUSTER, one_of

# What they do is above the stores, which keep their contract: one, and the cluster, are enough.
store_kind = one_of(QUICKEST_AND_CLUSTER)


CYCLE: list[Any] = []
CYCLE.append(CYCLE)

NOT_JSON: dict[str, Any] = {
    "integer key": {1: 2},
    "nested integer key": {"a": [{"b": {1: 2}}]},
    "bytes": b"x",
    "set": {1},
    "object": object(),
    "date": datetime(2020, 1, 1, tzinfo=UTC),
    "NaN": float("nan"),
    "nested NaN": {"a": [1.0, float("nan")]},
    "infinity": float("-inf"),
    "cycle": CYCLE,
}
JSON: dict[str, Any] = {
    "none": None,
    "false": False,
    "zero": 0,
    "large integer": 2**200,
    "float": 1.5,
    "small float": 5e-324,
    "empty text": "",
    "text": 'a "quoted" \u2028 \x00 line\n \U0001f600',
    "empty list": [],
    "empty object": {},
    "nested": {"a": [1, {"b": [None, True, "c", {}]}], "": []},
}


async def test_data_that_json_can_carry_comes_back_equal(quiet: JobsService) -> None:
    for id, data in JSON.items():
        await quiet.add(T1, id, data)
        worker = await accepted(quiet)
        await worker.finish(data)
        for stored in (worker.data, (await quiet.get(T1, id)).data):
            assert (stored, type(stored)) == (data, type(data))


BAD_PRIORITIES = {
    "none": None,
    "float": 1.5,
    "list": [1],
    "object": object(),
    "tuple of objects": (object(),),
}
BAD_TIMES = {
    "naive datetime": datetime(2030, 1, 1),
    "text": "tomorrow",
    "NaN": float("nan"),
    "infinity": float("inf"),
    "beyond what a datetime can be": 1e18,
    "object": object(),
}
BAD = [
    pytest.param(name, value, id=f"{name} {kind}")
    for name, values in (("data", NOT_JSON), ("priority", BAD_PRIORITIES), ("run_at", BAD_TIMES))
    for kind, value in values.items()
]


@pytest.mark.parametrize(("name", "value"), BAD)
async def test_what_no_job_can_have_is_refused_to_creators_and_workers_alike_and_nothing_is_written(
    quiet: JobsService, name: str, value: Any
) -> None:
    bad: Any = {name: value}
    worker = await running(quiet, J2)
    before = await contents(quiet)
    calls: list[Awaitable[Any]] = [
        quiet.add(T1, J2, **bad),
        quiet.add_many(T1, [NewJob("good"), NewJob(J2, **bad)]),
        quiet.resubmit(T1, J2, **bad),
        worker.resubmit(**bad),
        quiet.transact(lambda tx: tx.resubmit(T1, J2, **bad)),
    ]
    if name == "data":
        calls += [worker.update(value), worker.finish(value)]
    for call in calls:
        with pytest.raises(InvalidJob) as caught:
            await call
        # Over HTTP what is no value at all is refused before it is known whose it is.
        of_nobody = isinstance(quiet, JobsClient)
        assert of_nobody or (caught.value.type, caught.value.id) == (T1, J2)
    assert await contents(quiet) == before
    assert (await worker.finish()).state is JobState.FINISHED


@pytest.mark.parametrize("type", ["t", b"t", 7, -7, ("t", 1, b"x"), ("nested", ("t", b""))])
async def test_types_and_ids_come_back_as_they_were_given(quiet: JobsService, type: Any) -> None:
    await quiet.set_type_timeout(type, 10)
    assert type in await quiet.types()
    for id in ("j", b"j", "", b"\x00\xff"):
        await quiet.add(type, id, "data")
        job = await accepted(quiet, type)
        assert (job.type, job.id) == (type, id)
        assert [(job.type, job.id) for job in await listed(quiet, type)] == [(type, id)]
        assert await quiet.active_ids(type) == [id]
        await job.finish()
        assert await quiet.remove(type, id) is Removal.REMOVED


async def test_a_run_at_may_be_an_aware_datetime_or_seconds(quiet: JobsService) -> None:
    await quiet.add(T1, "date", run_at=FAR_DATE)
    await quiet.add(T1, "float", run_at=FAR_AWAY)
    await quiet.add(T1, "int", run_at=int(FAR_AWAY))
    for id in ("date", "float", "int"):
        run_at = (await quiet.get(T1, id)).run_at
        assert run_at == FAR_DATE
        assert run_at is not None
        assert run_at.tzinfo is UTC
