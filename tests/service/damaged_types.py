"""A store in which the failed, or the running, jobs of one type are on a damaged page."""

from __future__ import annotations

from pathlib import Path

from jobs_service import JobError, NewJob, Outcome
from tests.service.test_damaged_indexes import KEYS, MANY, store_at, with_damage
from tests.service.test_damaged_pages import no_header

DAMAGED = "a"
SOUND = "b"
BEFORE = "0"
"""Comes before: the first page of the other's running jobs has nothing else."""
PLACES = {"failed": -95, "activity": 0}
"""Of the row whose page is damaged, in its index: one that is read, on a page that has nothing else."""


async def with_damaged(path: Path, index: str) -> str:
    """Return the address of a store whose type `a` has a damaged page in an index: "failed" or "activity"."""
    async with store_at(path) as jobs:
        for type, name, count in (
            (BEFORE, "running", MANY),
            (DAMAGED, "failed", MANY),
            (DAMAGED, "running", MANY),
            (SOUND, "failed", 1),
            (SOUND, "running", 1),
        ):
            await jobs.set_type_timeout(type, 600)
            await jobs.add_many(type, [NewJob(f"{name}-{number:04}") for number in range(count)])
            taken = 0
            while taken < count:
                some = await jobs.accept_many(type, 100)
                taken += len(some)
                for job in some if name == "failed" else ():
                    await job.finish(outcome=Outcome.FAILED, error=JobError("Odd", f"of {type}"))
    content = (path / "compact").read_bytes()
    return with_damage(
        path,
        getattr(KEYS.of(DAMAGED), index),
        lambda places: sorted(places, key=lambda place: content[place : place + 40])[PLACES[index]],
        no_header,
    )
