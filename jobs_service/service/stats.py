"""`JobsService.stats`: the number of jobs by type and state, and average times over samples of them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jobs_service.arguments import check_summaries
from jobs_service.model import Job, JobId, JobType
from jobs_service.model.counts import JobsPage, TypeCounts
from jobs_service.runner.stats import Gauges, exact_type
from jobs_service.status import UNFINISHED

if TYPE_CHECKING:
    from jobs_service.service.service import JobsService

_SAMPLE: Final = 16
_SAMPLED_AT_ONCE: Final = 16
"""Types whose jobs are read at the same time."""


async def stats(service: JobsService, type: JobType | None, jobs: int) -> dict[JobType, dict[str, Any]]:
    """Return the number of jobs by type and state, and their average times; see JobsService.stats."""
    wanted = check_summaries(jobs)
    if wanted:
        summed: dict[JobType, Gauges] = defaultdict(lambda: Gauges(wanted))
        async for job in service.list(type):
            summed[exact_type(job.type)].add(job, service.wall_time())
        return {each: gauges.as_dict() for each, gauges in summed.items()}
    counted = {
        each: counts for each, counts in (await service.counts(type)).items() if counts.jobs or counts.unreadable
    }
    found = {}
    async for each, some in some_unfinished(service.page, counted):
        gauges = Gauges()
        for job in some:
            gauges.add(job, service.wall_time())
        found[each] = gauges.as_dict(counted[each])
    return found


async def some_unfinished(
    page: Callable[..., Awaitable[JobsPage]], counted: Mapping[JobType, TypeCounts]
) -> AsyncIterator[tuple[JobType, list[Job]]]:
    """Yield the first and the last 16 jobs of each unfinished state, type by type; several types are read together.

    Args:
        page: of a service.
        counted: the counts of the types.
    """

    async def of_type(type: JobType, counts: TypeCounts) -> list[Job]:
        found: dict[JobId, Job] = {}
        for state in UNFINISHED:
            count: int = getattr(counts, state.value)
            for newest_first in (False, True)[: 0 if not count else 1 + (count > _SAMPLE)]:
                some = await page(type, state=state.value, limit=_SAMPLE, newest_first=newest_first)
                found |= {job.id: job for job in some.jobs}
        return [*found.values()]

    types = [*counted]
    for first in range(0, len(types), _SAMPLED_AT_ONCE):
        part = types[first : first + _SAMPLED_AT_ONCE]
        for each in zip(part, await asyncio.gather(*(of_type(type, counted[type]) for type in part)), strict=True):
            yield each
