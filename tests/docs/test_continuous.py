"""The page on continuous jobs: its handler, whose jobs take turns in virtual time."""

from __future__ import annotations

import asyncio

from jobs_service import RunningJob
from tests.docs.pages import examples
from tests.runner.support import opened, running
from tests.virtual_time import in_virtual_time

[FOLLOW_FEED] = examples("docs/continuous.md")


@in_virtual_time
async def test_jobs_that_take_turns_go_on_where_they_were_stopped() -> None:
    seen: dict[str, list[int]] = {"a": [], "b": []}

    async def next_entry(id: str, position: int) -> int:
        await asyncio.sleep(1)
        seen[id].append(position)
        return position + 1

    async with opened() as jobs:
        exec(FOLLOW_FEED, {"jobs": jobs, "RunningJob": RunningJob, "next_entry": next_entry})
        jobs.configure("follow-feed", slots=1)
        for id in seen:
            await jobs.enqueue("follow-feed", {"position": 0}, id=id)
        async with running(jobs):
            await asyncio.sleep(10 * 60)
        for id, positions in seen.items():
            assert positions == [*range(len(positions))]
            assert len(positions) > 200
            assert (await jobs.get("follow-feed", id)).data == {"position": len(positions)}
