"""What happens to the jobs of a type, told by looking at all of them again and again.

No index in a store leads to what has changed of a type, and a subscription to each of very many jobs costs more than a
look at them. So the looks are as far apart as is needed for them to take a small share of a core.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobs_service.cli import exits
from jobs_service.cli.names import shown

if TYPE_CHECKING:
    from jobs_service import Job, JobEvent, JobsService

MOST_JOBS: Final = 100_000
"""More are neither kept in memory nor read over and over."""

LEAST_PAUSE: Final = 0.25
PAUSE_PER_LOOK: Final = 9.0
"""A pause is this many times as long as the look before it took."""


class _Seen(NamedTuple):
    """What is remembered of a job: enough to notice that it has changed."""

    seq: bytes | None
    cancel: bool
    unfinished: bool


async def changes(jobs: JobsService, type: Any) -> AsyncIterator[Job | JobEvent]:
    """Yield the jobs of a type that run, then for ever those that have changed, and what was removed unfinished.

    Raises:
        AnswerIsNo: there are too many jobs.
    """
    from jobs_service import JobEvent, JobState

    clock = asyncio.get_running_loop().time
    before: dict[Any, _Seen] | None = None
    while True:
        began = clock()
        present: dict[Any, _Seen] = {}
        async for job in jobs.list(type):
            seen = _Seen(job.seq, job.cancel, job.state is not JobState.FINISHED)
            present[job.id] = seen
            if len(present) > MOST_JOBS:
                raise exits.AnswerIsNo(
                    f"type {shown(type)} has more than {MOST_JOBS} jobs: watch one of them, or see {exits.PROGRAM} top"
                )
            if job.state is JobState.RUNNING if before is None else before.get(job.id) != seen:
                yield job
        for id in (before or {}).keys() - present.keys():
            if before is not None and before[id].unfinished:
                yield JobEvent(type, id, JobState.REMOVED, data=None, outcome=None, seq=None)
        before = present
        await asyncio.sleep(max(LEAST_PAUSE, (clock() - began) * PAUSE_PER_LOOK))
