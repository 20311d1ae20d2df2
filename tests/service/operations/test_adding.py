"""What `add` does to a missing, pending, running and finished job."""

from __future__ import annotations

from jobs_service import JobsService
from tests.service.support import FAR_AWAY, J1, J2, T1, drained, new_jobs

# add(if_exists="resubmit")


async def test_add_with_resubmit_of_a_pending_job_moves_its_queue_entry(quiet: JobsService) -> None:
    await quiet.add(T1, J1, priority=5)
    await quiet.add(T1, J2, priority=4)
    await quiet.add(T1, J1, priority=3, if_exists="resubmit")
    assert await drained(quiet) == [J1, J2]


async def test_add_with_resubmit_of_a_scheduled_job_can_make_it_ready(quiet: JobsService) -> None:
    await quiet.add(T1, J1, run_at=FAR_AWAY)
    await quiet.add(T1, J1, if_exists="resubmit")
    assert (await quiet.get(T1, J1)).run_at is None
    assert await drained(quiet) == [J1]


async def test_add_with_resubmit_that_changes_nothing_keeps_the_place_in_the_queue(quiet: JobsService) -> None:
    await quiet.add_many(T1, new_jobs("a", "b"))
    await quiet.add(T1, "a", if_exists="resubmit")
    assert await drained(quiet) == ["a", "b"]
