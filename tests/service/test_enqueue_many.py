"""Unique jobs, many jobs at once, and arguments of subclasses."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest

from jobs_service import InvalidJob, JobError, JobsService, JobState, Outcome, Progress
from tests.checker import assert_sound
from tests.service.enqueuing import CAT, Picture, picture
from tests.service.support import contents, listed
from tests.stores import QUICKEST_AND_CLUSTER, one_of

# What they do is above the stores, which keep their contract: one, and the cluster, are enough.
store_kind = one_of(QUICKEST_AND_CLUSTER)


# unique, and many


async def test_many_jobs_are_enqueued_at_once(quiet: JobsService) -> None:
    def pictures() -> Iterator[Picture]:
        for number in range(2500):
            yield Picture(f"{number}.png")

    added = await quiet.enqueue_many(picture, pictures(), priority=2)
    assert [job.data["path"] for job in added] == [f"{number}.png" for number in range(2500)]
    assert {job.priority for job in added} == {2}
    assert all(job.created and job.state is JobState.PENDING for job in added)
    assert len(await listed(quiet, "picture")) == 2500
    assert await quiet.get_type_timeout("picture") == 77
    await assert_sound(quiet.store)


@pytest.mark.parametrize("unique", ["key", "", 1, None])
async def test_many_jobs_cannot_all_have_one_key(quiet: JobsService, unique: Any) -> None:
    """Only the first of them would be there."""
    refused = r"^unique=.*: allowed are True and False"
    with pytest.raises(InvalidJob, match=refused):
        await quiet.enqueue_many(picture, [CAT, Picture("b")], unique=unique)
    with pytest.raises(InvalidJob, match=refused):
        await quiet.transact(lambda tx: tx.enqueue_many(picture, [CAT, Picture("b")], unique=unique))
    assert await listed(quiet, "picture") == []


@pytest.mark.parametrize("wrong", [[CAT, 3], 3, [CAT, {"path": "a"}]])
async def test_of_many_jobs_a_wrong_one_is_told_before_its_transaction(quiet: JobsService, wrong: Any) -> None:
    before = await contents(quiet)
    with pytest.raises(InvalidJob):
        await quiet.enqueue_many(picture, wrong)
    assert await contents(quiet) == before


class Kind(enum.StrEnum):
    PICTURE = "picture"


class Number(enum.IntEnum):
    THREE = 3


# types, ids and data of subclasses


async def test_members_of_enumerations_are_types_ids_and_data(quiet: JobsService) -> None:
    @quiet.handler(Kind.PICTURE)
    async def work(args: Any) -> None:
        """Take anything."""

    for type in (Kind.PICTURE, Number.THREE, (Kind.PICTURE, Number.THREE)):
        await quiet.set_type_timeout(type, 60)
        job = await quiet.add(type, Kind.PICTURE, OrderedDict(a=Number.THREE), priority=Number.THREE)
        plain = ("picture", 3) if isinstance(type, tuple) else type.value
        assert repr((job.type, job.id, job.data, job.priority)) == repr((plain, "picture", {"a": 3}, 3))
        assert await quiet.get(plain, "picture") == job
    enqueued = await quiet.enqueue(Kind.PICTURE, Kind.PICTURE)
    assert repr((enqueued.type, enqueued.data)) == repr(("picture", "picture"))
    assert (await quiet.enqueue(work, [Kind.PICTURE], unique=Kind.PICTURE)).id == "unique:picture"


async def test_members_of_enumerations_are_progress_and_errors(quiet: JobsService) -> None:
    await quiet.set_type_timeout("t", 60)
    await quiet.add("t", "a")
    job = await quiet.accept("t")
    assert job is not None
    job = await job.progress(Number.THREE, Number.THREE, Kind.PICTURE)
    assert repr(job.progress.value) == repr(Progress(3, 3, "picture", 1))
    ended = await job.finish(outcome=Outcome.FAILED, error=JobError(Kind.PICTURE, Kind.PICTURE))
    assert repr(ended.error) == repr(JobError("picture", "picture"))
