"""The same done with all jobs that match a filter: looked at page by page, and read again before each is changed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from jobs_service.errors import JobNotFound, RecordDamaged
from jobs_service.http.forms import Filter
from jobs_service.json_data import same
from jobs_service.layer.transaction import JobTransaction
from jobs_service.model import HistoryKind, Job, JobId, JobType
from jobs_service.redaction import Redaction
from jobs_service.status import Status, status_of

if TYPE_CHECKING:
    from jobs_service.service import JobsService

Action = Literal["resubmit", "cancel", "remove"]

_PAGE: Final = 200
"""Jobs that are read at once, and changed in one transaction."""
_LONGEST: Final = 5.0
"""Seconds after which a request says how far it has come."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was done with jobs that match.

    Attributes:
        matched: how many did, when they were looked at.
        changed: how many did still when they were to be changed.
        next: where the others are; None when there are none.
    """

    matched: int
    changed: int
    next: str | None


async def act_on_all(
    service: JobsService,
    type: JobType,
    action: Action,
    filter: Filter,
    limit: int,
    *,
    after: str | None = None,
    dry_run: bool = False,
) -> Done:
    """Do something with jobs of a type that match a filter.

    Args:
        service: that has them.
        type: of the jobs.
        action: what is done. "cancel" asks those that run to end, and removes the others; "remove" is the same.
        filter: which jobs.
        limit: of those that match; a request may stop before, when it has taken long.
        after: `next` of the call before; None to begin.
        dry_run: whether they are only counted.

    Raises:
        JobsError: as the operations do, and for a filter that cannot be.
    """
    began = time.monotonic()
    matched = changed = 0
    while True:
        size = min(_PAGE, limit - matched)
        page = await service.page(type, state=filter.state, prefix=filter.prefix, limit=size, after=after)
        now = service._context.sources.wall_time()
        # Nobody finds jobs by what they must not see.
        rules = await service.get_redaction(type)
        found = [job.id for job in page.jobs if matches(rules.job(job), filter, now)]
        matched += len(found)
        if found and not dry_run:
            changed += await _changed(service, type, action, filter, found, rules)
        after = page.next
        if after is None or matched >= limit or time.monotonic() - began > _LONGEST:
            return Done(matched, changed, after)


async def _changed(
    service: JobsService, type: JobType, action: Action, filter: Filter, ids: list[JobId], rules: Redaction
) -> int:
    """Do something with those of these jobs that match still, in one transaction; return how many there were."""

    async def change(tx: JobTransaction) -> int:
        count = 0
        now = service._context.sources.wall_time()
        for id in ids:
            try:
                if not matches(rules.job(await tx.get(type, id)), filter, now):
                    continue
            except (JobNotFound, RecordDamaged):
                continue
            if action == "resubmit":
                await tx.resubmit(type, id)
            else:
                await tx.remove(type, id)
            count += 1
        return count

    return await service.transact(change)


def matches(job: Job, filter: Filter, now: float) -> bool:
    """Return whether a job is one that a filter means.

    Args:
        job: as it is now.
        filter: which jobs.
        now: seconds since the epoch.
    """
    try:
        return _is_so(job, filter, now)
    except RecordDamaged:
        return filter.state == "unreadable"


def _is_so(job: Job, filter: Filter, now: float) -> bool:
    if filter.state is not None and filter.state not in (job.state.value, status_of(job, now).value):
        return False
    if filter.prefix is not None and not (isinstance(job.id, str) and job.id.startswith(filter.prefix)):
        return False
    if status_of(job, now) is Status.UNREADABLE:
        # Nothing else can be said of it.
        return filter.model_fields_set <= {"state", "prefix"}
    if filter.attempts is not None and job.attempts < filter.attempts:
        return False
    error = job.error
    if filter.error is not None and (error is None or error.type != filter.error):
        return False
    if filter.text is not None and (error is None or filter.text not in error.message):
        return False
    if filter.added_before is not None or filter.added_after is not None:
        added = next((event.at for event in job.history if event.kind is HistoryKind.ADDED), None)
        if added is None or not (filter.added_after or 0) <= added < (filter.added_before or float("inf")):
            return False
    return all(_has(job.data, path.split("."), value) for path, value in (filter.data or {}).items())


def _has(data: Any, path: list[str], value: Any) -> bool:
    for name in path:
        if not isinstance(data, dict) or name not in data:
            return False
        data = data[name]
    return same(data, value)
