"""Handlers of several modules: what a service includes, under which types, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from jobs_service import Handlers, InvalidSettings, JobsService
from tests.runner.support import ended, opened, running
from tests.virtual_time import in_virtual_time


class Database:
    """A resource."""


def open_database() -> Database:
    return Database()


def part() -> Handlers:
    """Return what a module has registered: two handlers, one of them periodic."""
    mail = Handlers()

    @mail.handler("send", slots=3)
    async def send(to: str) -> str:
        return f"to {to}"

    @mail.every("1h", type="sweep")
    async def sweep() -> None: ...

    return mail


@in_virtual_time
async def test_its_handlers_run_under_the_prefix_and_its_schedules_tick() -> None:
    mail = part()
    [send, sweep] = mail.handlers.values()
    async with opened() as jobs:
        jobs.include(mail, prefix="mail.")
        assert (send.type, sweep.type) == ("mail.send", "mail.sweep")
        assert [*jobs.handlers] == ["mail.send", "mail.sweep"] == [*mail.handlers]
        assert [*jobs.periodic] == ["mail.sweep"]
        async with running(jobs):
            job = await jobs.enqueue(send, "ada")
            assert job.type == "mail.send"
            assert (await ended(jobs, str(job.id), "mail.send")).result == "to ada"
            await asyncio.sleep(3600)
            assert (await jobs.counts("mail.sweep"))["mail.sweep"].succeeded == 1


def test_several_services_include_the_same_handlers() -> None:
    mail = part()
    for _ in range(2):
        jobs = JobsService("memory:")
        jobs.include(mail, prefix="mail.")
        assert [*jobs.handlers] == ["mail.send", "mail.sweep"]
    with pytest.raises(InvalidSettings, match=r"these Handlers have another one, 'mail\.'"):
        JobsService("memory:").include(mail, prefix="post.")


def test_resources_may_be_provided_by_the_module_by_the_service_or_by_both_alike() -> None:
    def handlers(*, provide: bool) -> Handlers:
        made = Handlers()
        if provide:
            made.provide(Database, open_database)

        @made.handler(f"work {provide}")
        async def work(database: Database) -> None: ...

        return made

    jobs = JobsService("memory:")
    jobs.provide(Database, open_database)
    jobs.include(handlers(provide=False))
    jobs.include(handlers(provide=True))
    assert [dict(each.resources) for each in jobs.handlers.values()] == [{"database": Database}] * 2
    alone = JobsService("memory:")
    with pytest.raises(InvalidSettings, match=r"nothing provides its parameter database; before it goes jobs\.provide"):
        alone.include(handlers(provide=False))
    assert alone.handlers == {}


def _numbered() -> Handlers:
    made = Handlers()

    @made.handler(7)
    async def numbered() -> None: ...

    return made


def _taking() -> Handlers:
    made = Handlers()

    @made.handler("again")
    async def again(args: dict[str, Any]) -> None: ...

    made.provide(Database, lambda: Database())
    return made


@pytest.mark.parametrize(
    ("include", "why"),
    [
        (lambda jobs: jobs.include(part()), r"type 'send' has a handler already: .*here \(test_include\.py:\d+\); "),
        (lambda jobs: jobs.include(part()), r"; .*send \(test_include\.py:\d+\) would be another one"),
        (lambda jobs: jobs.include(_numbered(), prefix="a."), r"prefix='a\.': the type 7 of .*numbered is no string"),
        (lambda jobs: jobs.include(_taking()), r"Database is provided twice: by .*open_database .* and by .*lambda"),
        (lambda jobs: jobs.include(part(), prefix=7), r"prefix=7: an int; allowed is str"),
        (lambda jobs: jobs.include(jobs), r"allowed are Handlers"),
        (lambda jobs: jobs.include(None), r"include\(None\): a NoneType; allowed are Handlers"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_taken_over(
    include: Callable[[JobsService], object], why: str
) -> None:
    jobs = JobsService("memory:")
    jobs.provide(Database, open_database)

    @jobs.handler("send")
    async def here() -> None: ...

    with pytest.raises(InvalidSettings, match=why):
        include(jobs)
    assert [*jobs.handlers] == ["send"]
    assert jobs.periodic == {}


def test_two_handlers_of_a_module_for_one_type_are_refused() -> None:
    mail = part()
    with pytest.raises(InvalidSettings, match=r"type 'send' has a handler already: .*\(test_include\.py:\d+\); "):

        @mail.handler("send")
        async def again() -> None: ...


def test_nothing_is_registered_after_the_include() -> None:
    mail = part()
    JobsService("memory:").include(mail)

    async def late() -> None: ...

    with pytest.raises(InvalidSettings, match="a service has included these Handlers already; register it before"):
        mail.handler("late")(late)
