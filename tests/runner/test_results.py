"""Results as rich as arguments: encoded by the annotation of the function, and given back decoded."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

from jobs_service import EndedJob, InvalidJob, JobFailed, JobsService, JobTransaction, RunningJob
from tests.runner.support import TYPE, add, opened, running
from tests.virtual_time import in_virtual_time


class Color(enum.Enum):
    RED = 1


@dataclass
class Point:
    x: int
    at: datetime
    names: set[str] = field(default_factory=set)


class Invoice(BaseModel):
    total: Decimal
    color: Color


class Reading(msgspec.Struct):
    value: float
    taken: date


class Stay(TypedDict):
    until: datetime


class Pair(NamedTuple):
    one: int
    other: UUID


NOW = datetime(2026, 11, 27, 12, 30, 0, 5, tzinfo=UTC)
ID = UUID("12345678123456781234567812345678")
POINT = Point(1, NOW, {"b", "a"})

RICH = [
    (Point, POINT),
    ("Point", POINT),
    (Point | None, POINT),
    (Point | None, None),
    (list[Point], [POINT, Point(2, NOW)]),
    (dict[str, Point], {"a": POINT}),
    (Invoice, Invoice(total=Decimal("1.10"), color=Color.RED)),
    (Reading, Reading(0.5, date(2026, 1, 2))),
    (list[Reading], [Reading(0.5, date(2026, 1, 2))]),
    (Stay, {"until": NOW}),
    (Pair, Pair(1, ID)),
    (Color, Color.RED),
    (datetime, NOW),
    (timedelta, timedelta(minutes=3)),
    (UUID, ID),
    (Decimal, Decimal("0.10")),
    (set[int], {1, 2}),
    (bytes, b"text"),
    (Path, Path("a/b")),
    (tuple[int, UUID], (1, ID)),
    (dict[int, Decimal], {1: Decimal(2)}),
]


WAYS = ["finished", "with its end", "in a thread", "in a transaction"]


@pytest.mark.parametrize(
    ("annotation", "value", "how"),
    [*((*rich, "returned") for rich in RICH), *((Point, POINT, how) for how in WAYS)],
    ids=[*map(str, range(len(RICH))), *WAYS],
)
@in_virtual_time
async def test_a_result_comes_back_as_its_annotation_says(annotation: Any, value: Any, how: str) -> None:
    async with opened() as jobs:

        async def work(job: RunningJob) -> Any:
            if how == "finished":
                await job.finish(result=value)
            elif how == "with its end":
                return await job.finish_with(lambda tx: value)
            elif how == "in a transaction":

                async def finish(tx: JobTransaction) -> None:
                    await tx.finish(job, result=value)

                await jobs.transact(finish)
            return value

        def in_thread() -> Any:
            return value

        function: Any = in_thread if how == "in a thread" else work
        function.__annotations__["return"] = EndedJob[annotation] if how == "with its end" else annotation
        handler = jobs.handler(TYPE)(function)
        async with running(jobs):
            await add(jobs, "a")
            async with asyncio.timeout(None if how != "in a thread" else 30):
                result = await jobs.result(handler, "a")
        assert (result, type(result)) == (value, type(value))
        assert await jobs.result(TYPE, "a") == (await jobs.get(TYPE, "a")).result


@in_virtual_time
async def test_a_result_that_is_not_what_the_annotation_says_is_kept_where_it_is_json() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work(job: RunningJob, data: Any) -> Point:
            return data  # type: ignore[no-any-return]

        fitting, other = {"x": 1, "at": NOW.isoformat(), "names": []}, {"x": "1"}
        async with running(jobs):
            await add(jobs)
            await jobs.add(TYPE, "fitting", fitting)
            await jobs.add(TYPE, "other", other)
            assert await jobs.result(work, "fitting") == Point(1, NOW)
            assert await jobs.result(TYPE, "other") == other
            with pytest.raises(InvalidJob, match=r"^the result of job 'work'/'other': .* field x: .*; it is '1'"):
                await jobs.result(work, "other")


@in_virtual_time
async def test_a_result_that_is_neither_fails_the_job_and_names_the_field() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work() -> Point:
            return Point("1", NOW)  # type: ignore[arg-type]

        async with running(jobs):
            await add(jobs, "a")
            # The oldest pydantic does not name the field.
            with pytest.raises(JobFailed, match=r"no result: the data does not fit Point: (field x|expected `int`)"):
                await jobs.result(work, "a")


def test_annotations_that_json_carries_cost_nothing() -> None:
    jobs = JobsService("memory:")
    for number, annotation in enumerate([int, dict[str, Any], list[dict[str, int | None]], None, Any, EndedJob[str]]):

        async def work() -> Any: ...

        work.__annotations__["return"] = annotation
        given = object()
        assert jobs.handler(f"t{number}")(work).results.encode(given) is given
