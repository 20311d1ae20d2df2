"""The same done with all jobs that match a filter: looked at page by page, and read again before each is changed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from jobs_service.errors import JobNotFound, JobsError, JobTooLarge, RecordDamaged, TransactionTooOld
from jobs_service.json_data import same
from jobs_service.layer.batch_bounds import TOO_MUCH
from jobs_service.layer.transaction import JobTransaction
from jobs_service.log import EventLog
from jobs_service.model import HistoryKind, Job, JobId, JobType
from jobs_service.redaction import Redaction
from jobs_service.service import filters
from jobs_service.status import Status, status_of

if TYPE_CHECKING:
    from jobs_service.http.forms import Filter  # which needs what `serve` without --http does not
    from jobs_service.service import JobsService

log = EventLog("jobs_service.http")

Action = Literal["resubmit", "cancel", "remove"]

_PAGE: Final = 200
"""Jobs that are read at once, and changed in one transaction."""
_FOUND_BY_THE_STORE: Final = frozenset({"state", "prefix"})
_LONGEST: Final = 5.0
"""Seconds after which a request says how far it has come."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was done with jobs that match.

    Attributes:
        matched: how many did, when they were looked at.
        changed: how many did still when they were to be changed.
        too_large: how many were left alone, because changed they would be more than the store takes.
        next: where the others are; None when there are none.
    """

    matched: int
    changed: int
    too_large: int
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
        limit: of those that match; a request may stop before, when it has taken long, or was stopped by an error.
        after: `next` of the call before; None to begin.
        dry_run: whether they are only counted.

    Raises:
        JobsError: as the operations do, and for a filter that cannot be, where nothing was changed before.
    """
    began = time.monotonic()
    common = filter.common()
    matched = changed = too_large = 0
    while True:
        left = limit - matched
        # Where the store finds those that match, no more are read than are wanted.
        size = min(_PAGE, left) if filter.model_fields_set <= _FOUND_BY_THE_STORE else _PAGE
        try:
            while True:
                page = await service.page(type, state=filter.state, prefix=filter.prefix, limit=size, after=after)
                # Nobody finds jobs by what they must not see.
                rules = await service.get_redaction(type)
                is_meant = partial(_is_meant, filter, common, rules, service._context.sources.wall_time)
                places = [place for place, job in enumerate(page.jobs) if is_meant(job)]
                if len(places) <= left:
                    break
                size = places[left - 1] + 1  # the next request goes on right behind the last of them
            found = [page.jobs[place].id for place in places]
            done = Changed() if dry_run or not found else await change_all(service, type, action, found, is_meant)
        except JobsError:
            if not changed:
                raise
            # What was changed is told, and who did it is noted; who goes on from here is told what is wrong.
            return Done(matched, changed, too_large, after)
        matched, changed, too_large = matched + len(found), changed + done.changed, too_large + done.too_large
        after = page.next
        if after is None or matched >= limit or time.monotonic() - began > _LONGEST:
            return Done(matched, changed, too_large, after)


@dataclass(frozen=True, slots=True)
class Changed:
    """What came of jobs that were to be changed; the others are gone, or are not meant any more.

    Attributes:
        changed: how many were.
        too_large: how many were left alone, because changed they would be more than the store takes.
    """

    changed: int = 0
    too_large: int = 0


async def change_all(
    service: JobsService, type: JobType, action: str, ids: Sequence[JobId], is_meant: Callable[[Job], bool]
) -> Changed:
    """Do something with those of these jobs that are meant still, in as few transactions as take it.

    Args:
        service: that has them.
        type: of the jobs.
        action: "resubmit"; every other one removes them, or asks those that run to end.
        ids: of the jobs.
        is_meant: called with each job as it is in the transaction that changes it.

    Raises:
        JobsError: as the operations do. Jobs before it may have been changed.
    """

    async def change(tx: JobTransaction) -> int:
        changed = 0
        for id in ids:
            try:
                if not is_meant(await tx.get(type, id)):
                    continue
            except (JobNotFound, RecordDamaged):
                continue
            if action == "resubmit":
                await tx.resubmit(type, id)
            else:
                await tx.remove(type, id)
            changed += 1
        return changed

    try:
        return Changed(await service.transact(change))
    except (JobTooLarge, *TOO_MUCH) as error:
        if len(ids) == 1:
            if isinstance(error, TransactionTooOld):  # the store was slow: the job is as it was
                raise
            log.warning("bulk_job_too_large", action=action, type=type, id=ids[0], error=str(error))
            return Changed(too_large=1)
    middle = len(ids) // 2
    first = await change_all(service, type, action, ids[:middle], is_meant)
    rest = await change_all(service, type, action, ids[middle:], is_meant)
    return Changed(first.changed + rest.changed, first.too_large + rest.too_large)


def _is_meant(
    filter: Filter, common: filters.Filter, rules: Redaction, wall_time: Callable[[], float], job: Job
) -> bool:
    try:
        return _is_so(rules.job(job), filter, common, wall_time())
    except RecordDamaged:
        return filter.state == "unreadable"


def _is_so(job: Job, filter: Filter, common: filters.Filter, now: float) -> bool:
    if filter.state is not None and filter.state not in (job.state.value, status_of(job, now).value):
        return False
    if status_of(job, now) is Status.UNREADABLE:
        # Nothing else can be said of it.
        return filter.model_fields_set <= _FOUND_BY_THE_STORE
    if filter.added_before is not None or filter.added_after is not None:
        added = next((event.at for event in job.history if event.kind is HistoryKind.ADDED), None)
        after = -math.inf if filter.added_after is None else filter.added_after
        before = math.inf if filter.added_before is None else filter.added_before
        if added is None or not after <= added < before:
            return False
    data = filter.data if isinstance(filter.data, dict) else {}
    return common.holds(job, now) and all(_has(job.data, path.split("."), value) for path, value in data.items())


def _has(data: Any, path: list[str], value: Any) -> bool:
    for name in path:
        if not isinstance(data, dict) or name not in data:
            return False
        data = data[name]
    return same(data, value)
