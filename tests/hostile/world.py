"""A service that hostile values are handed to, one argument of an operation at a time, and judging its answers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from jobs_service import Job, JobsError, JobsService, JobState, RunningJob, Settings
from jobs_service.model import UNSET
from tests.hostile.inputs import dispose
from tests.hostile.objects import Mischief
from tests.service.support import FAR_AWAY, TIMEOUT

WORK = "work"
"""The type whose jobs the calls add, run and remove."""
CANARY = "canary"
"""A type that no call is about."""
LONGEST_MESSAGE = 500
SETTINGS = Settings()


@dataclass(frozen=True)
class Arguments:
    """What the typed handler takes."""

    number: int
    text: str


class World:
    """A service, jobs that calls can be about, and others that must stay as they are."""

    def __init__(self, jobs: JobsService) -> None:
        self.jobs = jobs
        named = JobsService("memory:", settings=SETTINGS)

        @named.handler(WORK)
        async def handler(args: Any) -> None:
            """Take whatever there is."""

        @named.handler("typed")
        async def typed(args: Arguments) -> None:
            """Take a number and a text."""

        self.handler = handler
        self.typed = typed
        self._numbers = itertools.count()

    async def populate(self) -> None:
        """Add what the calls need, and the canaries."""
        await self.jobs.set_type_timeout(WORK, TIMEOUT)
        await self.jobs.set_type_timeout(CANARY, TIMEOUT)
        await self.jobs.add(CANARY, "first", {"tweet": [1, 2.5, None]}, priority=("b", b"a", -7))
        await self.jobs.add(CANARY, "scheduled", "later", run_at=FAR_AWAY)
        await self.jobs.add(CANARY, "running", 1, priority=-1000)
        held = await self.jobs.accept(CANARY, timeout=0, max_priority=-1000)
        assert held is not None
        self.held = held
        await self.jobs.add(WORK, "finished", "all of it")
        done = await self.jobs.accept(WORK, timeout=0)
        assert done is not None
        await done.finish()
        await self.jobs.add(WORK, "scheduled", "later", run_at=FAR_AWAY)
        self.canaries = await self.look()

    async def look(self) -> list[Job]:
        """Return the canaries as they are now."""
        return [job async for job in self.jobs.list(CANARY)]

    def new_id(self) -> str:
        """Return an id that no job has."""
        return f"job {next(self._numbers)}"

    async def running(self) -> RunningJob:
        """Return a running job that nobody else holds."""
        await self.jobs.add(WORK, self.new_id(), "as it was", priority=-5)
        job = await self.jobs.accept(WORK, timeout=0)
        assert job is not None
        return job

    async def assert_alive(self) -> None:
        """Fail unless the canaries are as they were, and the service does what it should."""
        assert await self.look() == self.canaries
        await self.held.update()
        self.canaries = await self.look()
        job = await self.running()
        assert (await job.finish({"done": True})).state is JobState.FINISHED
        await self.jobs.remove(WORK, job.id)


Result = Any
Call = Callable[[World, Any], Awaitable[Result]]
Check = Callable[[World, Any, Result], Awaitable[None]]


async def nothing_stored(_world: World, _value: Any, _result: Result) -> None:
    """Check nothing: the call stores nothing."""


@dataclass(frozen=True)
class Target:
    """One argument of one operation.

    Attributes:
        name: says which.
        call: calls the operation with a value as that argument.
        check: looks at what a call that succeeded has stored.
        passes_on: whether what the value itself raises comes out: where it is iterated or called.
    """

    name: str
    call: Call
    check: Check = nothing_stored
    passes_on: bool = False


# Judging


def plain(value: Any) -> Any:
    """Return a name's value as a plain one."""
    if isinstance(value, str):
        return "".join((value,))
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return tuple(map(plain, value)) if isinstance(value, tuple | list) else value


def same(stored: Any, given: Any) -> bool:
    """Return whether two names are the same, NaN and the types of numbers considered."""
    return repr(stored) == repr(plain(given))


def same_json(stored: Any, given: Any) -> bool:
    """Return whether stored data is what was given, after a round trip through JSON."""
    return json.dumps(stored) == json.dumps(given)


def complaint_about(error: JobsError) -> str | None:
    """Return what is wrong with an error's message."""
    message = str(error)
    if len(message.splitlines()) != 1 or "\n" in message:
        return f"{len(message.splitlines())} lines: {message!r:.300}"
    if not message.isprintable():
        return f"not printable: {message!r:.300}"
    if len(message) > LONGEST_MESSAGE:
        return f"{len(message)} characters: {message!r:.300}"
    if "Traceback" in message:
        return f"internals: {message!r:.300}"
    return None


async def attempt(target: Target, world: World, value: Any) -> str | None:
    """Hand a value over; return what is wrong with the answer."""
    try:
        result = await target.call(world, value)
        await target.check(world, value, result)
    except JobsError as error:
        return complaint_about(error)
    except Mischief as error:
        return None if target.passes_on else f"let {error!r} out"
    except Exception as error:
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        line = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where is not None else "?"
        return f"{type(error).__name__}: {str(error)[:200]} at {line}"
    finally:
        dispose(value)
    return None


# What is stored


async def job_is_stored(world: World, value: Any, job: Job | None) -> None:
    if job is not None and job.seq is not None:
        assert type(job.id) in (str, bytes)
        assert await world.jobs.get(job.type, job.id) == job


async def data_is_stored(world: World, value: Any, job: Job) -> None:
    stored = (await world.jobs.get(job.type, job.id)).data
    assert same_json(job.data, stored)
    if value is not ... and value is not UNSET:
        assert same_json(stored, value)
