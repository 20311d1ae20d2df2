"""Finds the changes of all jobs of a type by listing them repeatedly, for `watch`.

A store has no index for this, and subscriptions to very many jobs would cost more than lists of them. A pause follows
each list, so that together the lists take a small share of a core.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobs_service.cli import exits
from jobs_service.names import shown

if TYPE_CHECKING:
    from jobs_service import Job, JobEvent, JobsService

MOST_JOBS: Final = 100_000
"""With more jobs, the snapshots would take too much memory and the lists too much time."""

LEAST_PAUSE: Final = 0.25
"""Least seconds between two lists."""

PAUSE_PER_LIST: Final = 9.0
"""Ratio of a pause to the list before it: so lists take a tenth of a core."""

MOST_PAUSE: Final = 30.0
"""Most seconds between two lists; a list also takes very long if the reader of the output is slow."""


class _JobSnapshot(NamedTuple):
    """The fields of a job that reveal a change."""

    seq: bytes | None
    cancel: bool
    unfinished: bool


async def changes(jobs: JobsService, type: Any) -> AsyncIterator[Job | JobEvent]:
    """Yield the running jobs of a type; then, without end, changed jobs and removed unfinished jobs.

    Raises:
        AnswerIsNo: there are too many jobs.
    """
    from jobs_service import JobEvent, JobState

    clock = asyncio.get_running_loop().time
    before: dict[Any, _JobSnapshot] | None = None
    while True:
        began = clock()
        present: dict[Any, _JobSnapshot] = {}
        async for job in jobs.list(type):
            snapshot = _JobSnapshot(job.seq, job.cancel, job.state is not JobState.FINISHED)
            present[job.id] = snapshot
            if len(present) > MOST_JOBS:
                raise exits.AnswerIsNo(
                    f"type {shown(type)} has more than {MOST_JOBS} jobs: watch one of them, or see {exits.PROGRAM} top"
                )
            if job.state is JobState.RUNNING if before is None else before.get(job.id) != snapshot:
                yield job
        for id in (before or {}).keys() - present.keys():
            if before is not None and before[id].unfinished:
                yield JobEvent(type, id, JobState.REMOVED, data=None, outcome=None, seq=None)
        before = present
        await asyncio.sleep(min(max(LEAST_PAUSE, (clock() - began) * PAUSE_PER_LIST), MOST_PAUSE))
