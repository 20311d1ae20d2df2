"""Redacts the secret fields of jobs and events for the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from jobs_service import Job, JobEvent, JobsService
    from jobs_service.redaction import Redaction

    Shown = TypeVar("Shown", bound=Job | JobEvent)


async def without(jobs: JobsService, what: Shown) -> Shown:
    """Return a job or an event without its secret fields."""
    return _by(await jobs.get_redaction(what.type), what)


async def without_in_changed(jobs: JobsService, what: Shown) -> Shown:
    """Return a changed job, or its end, without its secret fields, even if the store has failed since."""
    from jobs_service.service.answers import rules_of_changed

    return _by(await rules_of_changed(jobs, what.type), what)


async def without_in_all(jobs: JobsService, page: Iterable[Job]) -> list[Job]:
    """Return some jobs without their secret fields, by one read per type."""
    from jobs_service.model.terms import exact_type

    found = [*page]
    # Read after the jobs, so that the rules at each job's addition are known by then.
    rules = {type: await jobs.get_redaction(type) for type in dict.fromkeys(exact_type(job.type) for job in found)}
    return [rules[exact_type(job.type)].job(job) for job in found]


def _by(rules: Redaction, what: Shown) -> Shown:
    from jobs_service import JobEvent

    return cast("Shown", rules.event(what) if isinstance(what, JobEvent) else rules.job(what))
