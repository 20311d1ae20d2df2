"""Resources that handlers name by their classes: how they are opened, given and closed, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import PROVIDED, BlockingJob, Handlers, InvalidSettings, JobsError, JobsService, RunningJob
from tests.runner.support import PATIENCE_OF_THREADS, TYPE, ended, opened, running, stopped
from tests.virtual_time import in_virtual_time


class Database:
    """A resource; it notes when it is opened and closed."""

    def __init__(self, notes: list[str], name: str = "database") -> None:
        self.notes, self.name = notes, name

    async def __aenter__(self) -> Database:
        self.notes.append(f"open {self.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.notes.append(f"close {self.name}")


class Mailer:
    """Another resource, which needs the first one."""

    def __init__(self, database: Database) -> None:
        self.database = database


@dataclass
class Mail:
    to: str


@in_virtual_time
async def test_they_are_open_while_handlers_run_and_closed_in_reverse_order() -> None:
    notes: list[str] = []
    begun = asyncio.Event()

    @asynccontextmanager
    async def mailer(database: Database) -> AsyncIterator[Mailer]:
        notes.append("open mailer")
        yield Mailer(database)
        notes.append("close mailer")

    async with opened() as jobs:
        jobs.provide(Database, lambda: Database(notes))
        jobs.provide(Mailer, mailer)
        jobs.provide(Handlers, lambda: notes.append("nobody needs it"))

        @jobs.handler(TYPE)
        async def work(job: RunningJob, mailer: Mailer = PROVIDED) -> str:
            begun.set()
            await asyncio.sleep(1)  # of its grace
            notes.append("handled")
            return mailer.database.name

        assert notes == []
        async with running(jobs) as task:
            await jobs.enqueue(work, id="a")
            await begun.wait()
            await stopped(task)
        assert (await ended(jobs, "a")).result == "database"
        assert notes == ["open database", "open mailer", "handled", "close mailer", "close database"]
        async with running(jobs):  # another run opens them anew
            await jobs.enqueue(work, id="b")
            await ended(jobs, "b")
        assert notes == 2 * notes[:5]


def _conventions(jobs: Handlers) -> dict[str, Any]:
    """Register handlers of every calling convention that name a resource."""

    @jobs.handler("only resource")
    async def only(database: Database) -> str:
        return database.name

    @jobs.handler("job and resource")
    async def with_job(job: RunningJob, database: Database) -> str:
        return f"{job.id!r} {database.name}"

    @jobs.handler("all three")
    async def with_args(job: RunningJob, args: Mail, database: Database) -> str:
        return f"{job.id!r} {args.to} {database.name}"

    @jobs.handler("resource first")
    async def first(database: Database, args: Mail) -> str:
        return f"{args.to} {database.name}"

    @jobs.handler("for type checkers")
    async def checked(job: RunningJob, args: Mail, *, database: Database = PROVIDED) -> str:
        return f"{args.to} {database.name}"

    @jobs.handler("keywords")
    async def keywords(job: RunningJob, to: str, database: Database, copies: int = 2) -> str:
        return f"{to} {copies} {database.name}"

    @jobs.handler("plain")
    def plain(job: BlockingJob, args: Mail, database: Database) -> str:
        return f"{args.to} {database.name}"

    return {each.name.rpartition(".")[2]: each for each in jobs.handlers.values()}


async def test_every_calling_convention_gets_them_and_enqueue_takes_none() -> None:
    async with asyncio.timeout(PATIENCE_OF_THREADS), JobsService("memory:") as jobs:
        jobs.provide(Database, lambda: Database([]))
        known = _conventions(jobs)
        async with running(jobs):
            await jobs.enqueue(known["only"], id="x")
            await jobs.enqueue(known["with_job"], id="x")
            for name in ("with_args", "first", "checked", "plain"):
                await jobs.enqueue(known[name], Mail("ada"), id="x")
            await jobs.enqueue(known["keywords"], {"to": "ada"}, id="x")
            results = {name: (await ended(jobs, "x", each.type)).result for name, each in known.items()}
    assert results == {
        "only": "database",
        "with_job": "'x' database",
        "with_args": "'x' ada database",
        "first": "ada database",
        "checked": "ada database",
        "keywords": "ada 2 database",
        "plain": "ada database",
    }


class Plain:
    """A context manager that is not async."""

    def __enter__(self) -> str:
        return "plain"

    def __exit__(self, *_: object) -> None: ...


async def _coroutine() -> str:
    return "coroutine"


async def _async_generator() -> AsyncIterator[str]:
    yield "async generator"


def _generator() -> Iterator[str]:
    yield "generator"


@contextmanager
def _managed(name: str = "managed") -> Iterator[str]:
    yield name


@pytest.mark.parametrize(
    ("factory", "value"),
    [
        (Plain, "plain"),
        (_coroutine, "coroutine"),
        (_async_generator, "async generator"),
        (_generator, "generator"),
        (_managed, "managed"),
        (lambda: "value", "value"),
        (lambda: _coroutine(), "coroutine"),
    ],
)
@in_virtual_time
async def test_a_factory_is_whatever_gives_the_resource(factory: Callable[[], Any], value: str) -> None:
    async with opened() as jobs:
        jobs.provide(Database, factory)

        @jobs.handler(TYPE)
        async def work(database: Database) -> Any:
            return database

        async with running(jobs):
            await jobs.enqueue(work, id="a")
            assert (await ended(jobs, "a")).result == value


@in_virtual_time
async def test_one_that_cannot_be_opened_ends_the_run_before_any_job_is_accepted() -> None:
    notes: list[str] = []

    def broken() -> Mailer:
        raise OSError("nobody listens")

    async with opened() as jobs:
        jobs.provide(Database, lambda: Database(notes))
        jobs.provide(Mailer, broken)

        @jobs.handler(TYPE)
        async def work(database: Database, mailer: Mailer) -> None: ...

        await jobs.enqueue(work, id="a")
        with pytest.raises(JobsError) as refusal:
            await jobs.run()
        assert (await jobs.get(TYPE, "a")).attempts == 0
    assert isinstance(refusal.value.__cause__, OSError)
    why = str(refusal.value)
    assert "broken (test_resources.py:" in why
    assert why.endswith("could not open Mailer: OSError: nobody listens")
    assert notes == ["open database", "close database"]


@in_virtual_time
async def test_one_that_cannot_be_closed_is_logged_and_the_others_are_closed() -> None:
    notes: list[str] = []

    @asynccontextmanager
    async def stubborn() -> AsyncIterator[Mailer]:
        yield Mailer(Database([]))
        raise OSError("still busy")

    async with opened() as jobs:
        jobs.provide(Database, lambda: Database(notes))
        jobs.provide(Mailer, stubborn)

        @jobs.handler(TYPE)
        async def work(database: Database, mailer: Mailer) -> None: ...

        with capture_logs() as logs:
            async with running(jobs):
                await jobs.enqueue(work, id="a")
                await ended(jobs, "a")
    assert notes == ["open database", "close database"]
    assert [each["resource"] for each in logs if each["event"] == "resource_not_closed"] == ["Mailer"]


def _a_missing_one(jobs: JobsService) -> None:
    @jobs.handler(TYPE)
    async def work(mailer: Mailer) -> None: ...


def _a_missing_one_by_default(jobs: JobsService) -> None:
    @jobs.handler(TYPE)
    async def work(*, mailer: Mailer = PROVIDED) -> None: ...


def _no_class(jobs: JobsService) -> None:
    @jobs.handler(TYPE)
    async def work(*, mailer: Any = PROVIDED) -> None: ...


def _by_position(jobs: JobsService) -> None:
    @jobs.handler(TYPE)
    async def work(database: Database, /) -> None: ...


def _args_by_position(jobs: JobsService) -> None:
    @jobs.handler(TYPE)
    async def work(args: Mail, /, database: Database) -> None: ...


def _job_behind(jobs: JobsService) -> None:
    @jobs.handler(TYPE)
    async def work(database: Database, job: RunningJob) -> None: ...


def _isolated(jobs: JobsService) -> None:
    @jobs.handler(TYPE, isolated=True)
    def work(database: Database) -> None: ...


def _provided_later(jobs: JobsService) -> None:
    @jobs.handler(TYPE)
    async def work(args: Mail) -> None: ...

    jobs.provide(Mail, lambda: Mail("bob"))


def _needs_more(number: int) -> Database:
    return Database([])


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (_a_missing_one, "parameter mailer: Mailer is nothing that a job's data can be"),
        (_a_missing_one, "and what jobs.provide(...) names"),
        (_a_missing_one_by_default, "nothing provides its parameter mailer; before it goes jobs.provide(Mailer, ...)"),
        (_no_class, "parameter mailer = PROVIDED: annotate it with the class that is provided"),
        (_by_position, "parameter database is positional-only; resources are given by keyword"),
        (_args_by_position, "parameter args is positional-only, beside a resource"),
        (_job_behind, "its first parameter gets the job: put job before the resources"),
        (_isolated, "isolated=True is for functions without resources, which another process has open"),
        (_provided_later, "has Mail for its argument args, and"),
        (lambda jobs: jobs.provide(Database, lambda: None), "Database is provided twice: by "),
        (
            lambda jobs: jobs.provide(Mailer, _needs_more),
            "nothing provides its parameter number; provide what it needs",
        ),
        (lambda jobs: jobs.provide(Mailer, None), "what provides Mailer is a NoneType; allowed is a function"),
        (lambda jobs: jobs.provide(str, _coroutine), "cannot be provided: allowed is a class of your own"),
        (lambda jobs: jobs.provide(RunningJob, _coroutine), "cannot be provided: allowed is a class of your own"),
        (lambda jobs: jobs.provide("Database", _coroutine), "cannot be provided: allowed is a class of your own"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(write: Callable[[JobsService], object], why: str) -> None:
    jobs = JobsService("memory:")
    jobs.provide(Database, lambda: Database([]))
    with pytest.raises(InvalidSettings) as refusal:
        write(jobs)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)
