"""Handlers of types that look alike, or are equal in Python, but are different types in the store."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from jobs_service import JobsService, RunningJob
from tests.runner.support import opened, running
from tests.virtual_time import in_virtual_time


def nan(number: int) -> float:
    """Return one of the many NaNs."""
    value: float = struct.unpack(">d", struct.pack(">Q", 0x7FF8_0000_0000_0000 | number))[0]
    return value


ALIKE: list[tuple[Any, Any]] = [
    (("t", nan(1)), ("t", nan(2))),
    (("t", 1), ("t", True)),
    (("t", 1), ("t", 1.0)),
    (("t", 0.0), ("t", -0.0)),
    (("nan",), ("nan", "nan")),
]


def register(jobs: JobsService, type: Any, name: str, **options: Any) -> None:
    @jobs.handler(type, **options)
    async def work(job: RunningJob) -> str:
        return name


@pytest.mark.parametrize(("one", "other"), ALIKE, ids=map(repr, ALIKE))
@in_virtual_time
async def test_each_type_has_its_own_handler(one: Any, other: Any) -> None:
    async with opened() as jobs:
        register(jobs, one, "one", slots=1)
        register(jobs, other, "other", slots=1)
        jobs.configure(other, slots=3)
        assert [handler.options.slots for handler in jobs.handlers.values()] == [1, 3]
        async with running(jobs, max_jobs=2):
            for type, name in ((one, "one"), (other, "other")):
                job = await jobs.enqueue(type, id="a")
                assert await jobs.result(job.type, job.id, timeout=10) == name
