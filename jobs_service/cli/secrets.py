"""What the command line shows of jobs: not the fields that their types call secret."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from jobs_service import Job, JobEvent, JobsService
    from jobs_service.redaction import Redaction

    Shown = TypeVar("Shown", bound=Job | JobEvent)


async def without(jobs: JobsService, what: Shown) -> Shown:
    """Return what may be shown of a job or of an event."""
    return _by(await jobs.get_redaction(what.type), what)


async def without_in_changed(jobs: JobsService, what: Shown) -> Shown:
    """Return what may be shown of a job that was changed, or of its end, also when the store has failed since."""
    from jobs_service.service.answers import rules_of_changed

    return _by(await rules_of_changed(jobs, what.type), what)


async def without_in_all(jobs: JobsService, page: Iterable[Job]) -> list[Job]:
    """Return what may be shown of some jobs, by one read per type."""
    from jobs_service.runner.stats import exact_type

    found = [*page]
    # Read after the jobs: what was secret of each when it was added is known by then.
    rules = {type: await jobs.get_redaction(type) for type in dict.fromkeys(exact_type(job.type) for job in found)}
    return [rules[exact_type(job.type)].job(job) for job in found]


def _by(rules: Redaction, what: Shown) -> Shown:
    from jobs_service import JobEvent

    return cast("Shown", rules.event(what) if isinstance(what, JobEvent) else rules.job(what))
