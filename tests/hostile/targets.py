"""What the hostile values are handed to: every public operation, one argument at a time, the others being good."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from jobs_service import (
    Discard,
    InvalidJob,
    Job,
    JobError,
    JobNotFound,
    JobsError,
    JobsService,
    JobState,
    JobTransaction,
    NewJob,
    Retry,
    RunningJob,
    Settings,
    Snooze,
)
from jobs_service.model import UNSET
from jobs_service.runner.options import HandlerOptions
from jobs_service.store import KeySelector
from tests.hostile.inputs import Mischief, dispose
from tests.service.support import FAR_AWAY, TIMEOUT

WORK = "work"
"""The type whose jobs the calls add, run and remove."""
CANARY = "canary"
"""A type that no call is about."""
LONGEST_MESSAGE = 500
SETTINGS = Settings()
_MOMENT = 0.02
_MOST_JOBS = 100


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


# Everything that the service and a transaction have alike


async def _job_is_stored(world: World, value: Any, job: Job | None) -> None:
    if job is not None and job.seq is not None:
        assert type(job.id) in (str, bytes)
        assert await world.jobs.get(job.type, job.id) == job


async def _type_is_stored(world: World, value: Any, job: Job) -> None:
    assert same(job.type, value)
    await _job_is_stored(world, value, job)


async def _id_is_stored(world: World, value: Any, job: Job) -> None:
    assert same(job.id, value)
    await _job_is_stored(world, value, job)
    await world.jobs.remove(job.type, job.id, force=True)


async def _data_is_stored(world: World, value: Any, job: Job) -> None:
    stored = (await world.jobs.get(job.type, job.id)).data
    assert same_json(job.data, stored)
    if value is not ... and value is not UNSET:
        assert same_json(stored, value)


async def _priority_is_stored(world: World, value: Any, job: Job) -> None:
    assert same((await world.jobs.get(job.type, job.id)).priority, value)


async def _new_type(world: World, value: Any, _result: None) -> None:
    assert any(same(each, value) for each in await world.jobs.types())
    assert await world.jobs.get_type_timeout(value) == TIMEOUT


async def _listed(api: Any, *arguments: Any, **keywords: Any) -> list[Job]:
    return [job async for job in api.list(*arguments, **keywords)]


Operation = Callable[[Any, World, Any], Awaitable[Result]]


def _anywhere(name: str, operation: Operation, check: Check = nothing_stored, passes_on: bool = False) -> list[Target]:
    """Return the target as an operation of the service, and of a transaction."""

    async def in_transaction(world: World, value: Any) -> Result:
        async def work(tx: JobTransaction) -> Result:
            await tx.add(WORK, "beside")
            result = await operation(tx, world, value)
            await tx.remove(WORK, "beside", force=True)
            return result

        return await world.jobs.transact(work)

    return [
        Target(f"service: {name}", lambda world, value: operation(world.jobs, world, value), check, passes_on),
        Target(f"transaction: {name}", in_transaction, check, passes_on),
    ]


async def _add_of_type(api: Any, world: World, value: Any) -> Job:
    await api.set_type_timeout(value, TIMEOUT)
    job: Job = await api.add(value, world.new_id())
    return job


async def _accept_and_release(api: Any, world: World, **terms: Any) -> None:
    if isinstance(api, JobsService):
        terms.setdefault("timeout", 0)
        await world.jobs.add(WORK, world.new_id(), priority=-4)
    for job in await api.accept_many(WORK, terms.pop("limit", 1), **terms):
        assert job.state is JobState.RUNNING
        if isinstance(api, JobsService):
            await job.finish()
        else:
            await api.finish(job)


async def _accept_of_type(api: Any, world: World, value: Any) -> RunningJob | None:
    job: RunningJob | None = await (api.accept(value, timeout=0) if isinstance(api, JobsService) else api.accept(value))
    if job is not None:
        await (job.release() if isinstance(api, JobsService) else api.release(job))
    return job


async def _added_and_resubmitted(api: Any, world: World, **changes: Any) -> Job:
    id = world.new_id()
    await api.add(WORK, id, "as it was")
    job: Job = await api.resubmit(WORK, id, **changes)
    return job


async def _added_with_rule(api: Any, world: World, value: Any) -> Job:
    id = world.new_id()
    await api.add(WORK, id)
    job: Job = await api.add(WORK, id, if_exists=value)
    return job


async def _paused_and_resumed(api: Any, value: Any) -> None:
    await api.pause(value)
    assert await api.paused(value)
    await api.resume(value)
    assert not await api.paused(value)


async def _enqueue(api: Any, world: World, **how: Any) -> Job:
    how.setdefault("args", None)
    job: Job = await api.enqueue(world.handler, how.pop("args"), **how)
    return job


async def _enqueued_and_removed(api: Any, world: World, **how: Any) -> None:
    job = await _enqueue(api, world, **how)
    await api.remove(job.type, job.id)


async def _enqueued_many(api: Any, world: World, jobs: Any) -> None:
    if type(jobs) is range:
        jobs = jobs[:_MOST_JOBS]  # every number in it is a job's argument: a trillion jobs take their time
    await _removed(api, await api.enqueue_many(world.handler, jobs))


async def _added_many(api: Any, world: World, jobs: Any, **rule: Any) -> None:
    await _removed(api, await api.add_many(WORK, jobs, **rule))


async def _removed(api: Any, jobs: list[Job]) -> None:
    """Remove jobs, of which a long text makes thousands: together, where each is a transaction's round trips."""
    if isinstance(api, JobsService):
        await asyncio.gather(*(api.remove(job.type, job.id) for job in jobs))
        return
    for job in jobs:
        await api.remove(job.type, job.id)


ANYWHERE = [
    *_anywhere("type of set_type_timeout", lambda api, world, v: api.set_type_timeout(v, TIMEOUT), _new_type),
    *_anywhere("seconds of a type", lambda api, world, v: api.set_type_timeout("timed", v)),
    *_anywhere("type of get_type_timeout", lambda api, world, v: api.get_type_timeout(v)),
    *_anywhere("type of clear_type_timeout", lambda api, world, v: api.clear_type_timeout(v)),
    *_anywhere("type of add", _add_of_type, _type_is_stored),
    *_anywhere("id of add", lambda api, world, v: api.add(WORK, v), _id_is_stored),
    *_anywhere("data of add", lambda api, world, v: api.add(WORK, world.new_id(), v), _data_is_stored),
    *_anywhere("priority of add", lambda api, world, v: api.add(WORK, world.new_id(), priority=v), _priority_is_stored),
    *_anywhere("run_at of add", lambda api, world, v: api.add(WORK, world.new_id(), run_at=v), _job_is_stored),
    *_anywhere("if_exists of add", _added_with_rule, _job_is_stored),
    *_anywhere("type of add_many", lambda api, world, v: api.add_many(v, [NewJob(world.new_id())])),
    *_anywhere("jobs of add_many", _added_many, passes_on=True),
    *_anywhere("a job of add_many", lambda api, world, v: _added_many(api, world, [NewJob("m"), v])),
    *_anywhere("id in add_many", lambda api, world, v: _added_many(api, world, [NewJob("m"), NewJob(v)])),
    *_anywhere("data in add_many", lambda api, world, v: _added_many(api, world, [NewJob("m", v)])),
    *_anywhere("priority in add_many", lambda api, world, v: _added_many(api, world, [NewJob("m", priority=v)])),
    *_anywhere("run_at in add_many", lambda api, world, v: _added_many(api, world, [NewJob("m", run_at=v)])),
    *_anywhere("if_exists of add_many", lambda api, world, v: _added_many(api, world, [NewJob("m")], if_exists=v)),
    *_anywhere("type of remove", lambda api, world, v: api.remove(v, "x")),
    *_anywhere("id of remove", lambda api, world, v: api.remove(WORK, v)),
    *_anywhere("force of remove", lambda api, world, v: api.remove(WORK, "nobody", force=v)),
    *_anywhere("type of resubmit", lambda api, world, v: api.resubmit(v, "x")),
    *_anywhere("id of resubmit", lambda api, world, v: api.resubmit(WORK, v)),
    *_anywhere("data of resubmit", lambda api, world, v: _added_and_resubmitted(api, world, data=v), _data_is_stored),
    *_anywhere("priority of resubmit", lambda api, world, v: _added_and_resubmitted(api, world, priority=v)),
    *_anywhere("run_at of resubmit", lambda api, world, v: _added_and_resubmitted(api, world, run_at=v)),
    *_anywhere("type of get", lambda api, world, v: api.get(v, "x")),
    *_anywhere("id of get", lambda api, world, v: api.get(WORK, v)),
    *_anywhere("type of list", lambda api, world, v: _listed(api, v) if v is not None else _listed(api, WORK)),
    *_anywhere("state of list", lambda api, world, v: _listed(api, "empty", state=v)),
    *_anywhere("page_size of list", lambda api, world, v: _listed(api, "empty", page_size=v)),
    *_anywhere("type of active_ids", lambda api, world, v: api.active_ids(v)),
    *_anywhere("type of pending_count", lambda api, world, v: api.pending_count(v)),
    *_anywhere("due_by of pending_count", lambda api, world, v: api.pending_count("empty", due_by=v)),
    *_anywhere("limit of pending_count", lambda api, world, v: api.pending_count("empty", limit=v)),
    *_anywhere("type of accept", _accept_of_type),
    *_anywhere("type of accept_many", lambda api, world, v: _accept_of_type(api, world, v)),
    *_anywhere("limit of accept_many", lambda api, world, v: _accept_and_release(api, world, limit=v)),
    *_anywhere("max_priority of accept", lambda api, world, v: _accept_and_release(api, world, max_priority=v)),
    *_anywhere("due_by of accept", lambda api, world, v: _accept_and_release(api, world, due_by=v)),
    *_anywhere("spread of accept", lambda api, world, v: _accept_and_release(api, world, spread=v)),
    *_anywhere("type of pause and of resume", lambda api, world, v: _paused_and_resumed(api, v)),
    *_anywhere("type of paused", lambda api, world, v: api.paused(v)),
    *_anywhere("type of set_retention", lambda api, world, v: api.set_retention(v, keep=None)),
    Target("type of set_redaction", lambda world, v: world.jobs.set_redaction(v, ["card"])),
    Target("paths of set_redaction", lambda world, v: world.jobs.set_redaction("kept", v)),
    Target("type of get_redaction", lambda world, v: world.jobs.get_redaction(v)),
    Target("type of get_retention", lambda world, v: world.jobs.get_retention(v)),
    Target("type of queue_state", lambda world, v: world.jobs.queue_state(v)),
    *_anywhere("keep of set_retention", lambda api, world, v: api.set_retention("kept", keep=v)),
    *_anywhere("keep_failed of set_retention", lambda api, world, v: api.set_retention("kept", keep_failed=v)),
    *_anywhere("handler of enqueue", lambda api, world, v: api.enqueue(v, None)),
    *_anywhere("arguments of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, args=v)),
    *_anywhere("typed arguments of enqueue", lambda api, world, v: api.enqueue(world.typed, v)),
    *_anywhere("id of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, id=v)),
    *_anywhere("priority of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, priority=v)),
    *_anywhere("run_at of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, run_at=v)),
    *_anywhere("delay of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, delay=v)),
    *_anywhere("max_attempts of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, max_attempts=v)),
    *_anywhere("time_limit of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, time_limit=v)),
    *_anywhere("jobs of enqueue_many", lambda api, world, v: _enqueued_many(api, world, v)),
    *_anywhere("unique of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, unique=v)),
]


# What only the service has


async def _stop_and_remove_in_time(world: World, value: Any) -> None:
    id = world.new_id()
    await world.jobs.add(WORK, id)
    try:
        await world.jobs.stop_and_remove(WORK, id, timeout=value)
    except TimeoutError:
        raise AssertionError("no worker had it") from None


async def _first_events(subscription: Any) -> None:
    async with subscription as events:
        async for _ in events:
            return


async def _subscribe(world: World, type: Any, id: Any) -> None:
    await _first_events(world.jobs.subscribe(type, id))


async def _subscribe_many(world: World, value: Any) -> None:
    await _first_events(world.jobs.subscribe_many(value))


async def _wait_for(world: World, *arguments: Any, **keywords: Any) -> None:
    try:
        await world.jobs.wait(*arguments, **keywords)
    except TimeoutError:
        assert "timeout" in keywords


async def _result(world: World, *arguments: Any, **keywords: Any) -> None:
    try:
        assert await world.jobs.result(*arguments, **keywords) is None
    except TimeoutError:
        assert "timeout" in keywords


async def _run(world: World, **how: Any) -> None:
    """Run jobs: only values that are refused come back at once, the others run until the time is up."""
    jobs = JobsService(world.jobs.store)
    jobs.handler("idle")(nothing)
    task = asyncio.get_running_loop().create_task(jobs.run(**how))
    await asyncio.wait([task], timeout=_MOMENT)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def nothing() -> None:
    """Do nothing: a handler."""


async def _configure(world: World, **changes: Any) -> None:
    jobs = _unopened()
    jobs.handler("work")(nothing)
    jobs.configure("work", **changes)


def _unopened() -> JobsService:
    return JobsService("memory:", settings=SETTINGS)


def _registering(name: str, register: Callable[[JobsService, Any], object], *, passes_on: bool = False) -> Target:
    """Return the target of something that is said before handlers run, to a service of its own."""

    async def call(world: World, value: Any) -> None:
        register(_unopened(), value)

    return Target(name, call, passes_on=passes_on)


def _raised(name: str, make: Callable[[Any], JobsError]) -> Target:
    """Return the target of an exception that handlers raise: what it says is the handler's own text."""

    async def call(world: World, value: Any) -> None:
        make(value)

    return Target(name, call)


async def _transact(world: World, value: Any) -> None:
    try:
        await world.jobs.transact(value)
    except (TypeError, ValueError):  # the function's own: classes refuse what they are called with
        assert callable(value)


async def _transact_returning(world: World, value: Any) -> None:
    await world.jobs.transact(lambda tx: value)


async def _transact_awaiting(world: World, value: Any) -> None:
    async def work(tx: JobTransaction) -> None:
        await tx.add(WORK, "must not stay")
        await value

    try:
        await world.jobs.transact(work)
        await world.jobs.remove(WORK, "must not stay")
    except TypeError as error:  # Python's own, for what cannot be awaited
        return _not_awaitable(error)
    finally:
        with pytest.raises(JobNotFound):
            await world.jobs.get(WORK, "must not stay")


async def _within(world: World, value: Any) -> None:
    with world.jobs.within(value):
        pytest.fail("no such value is a transaction")


def _not_awaitable(error: TypeError) -> None:
    assert "await" in str(error)


SERVICE = [
    Target("type of stop_and_remove", lambda world, v: world.jobs.stop_and_remove(v, "x", timeout=TIMEOUT)),
    Target("id of stop_and_remove", lambda world, v: world.jobs.stop_and_remove(WORK, v, timeout=TIMEOUT)),
    Target("timeout of stop_and_remove", _stop_and_remove_in_time),
    Target("timeout of accept", lambda world, v: _accept_and_release(world.jobs, world, timeout=v)),
    Target("type of subscribe", lambda world, v: _subscribe(world, v, "x")),
    Target("id of subscribe", lambda world, v: _subscribe(world, WORK, v)),
    Target("jobs of subscribe_many", _subscribe_many, passes_on=True),
    Target("a job of subscribe_many", lambda world, v: _subscribe_many(world, [(WORK, "finished"), v])),
    Target("type in subscribe_many", lambda world, v: _subscribe_many(world, [(v, "x")])),
    Target("id in subscribe_many", lambda world, v: _subscribe_many(world, [(WORK, v)])),
    Target("type of wait", lambda world, v: _wait_for(world, v, "x", timeout=0.5)),
    Target("id of wait", lambda world, v: _wait_for(world, WORK, v, timeout=0.5)),
    Target("state of wait", lambda world, v: _wait_for(world, WORK, "finished", v)),
    Target("second state of wait", lambda world, v: _wait_for(world, WORK, "finished", "finished", v)),
    Target("timeout of wait", lambda world, v: _wait_for(world, WORK, "finished", timeout=v)),
    Target("function of transact", _transact, passes_on=True),
    Target("result of a transaction function", _transact_returning, passes_on=True),
    Target("awaited in a transaction function", _transact_awaiting, passes_on=True),
    Target("transaction of within", _within),
    Target("type of result", lambda world, v: _result(world, v, "x", timeout=0.5)),
    Target("id of result", lambda world, v: _result(world, WORK, v, timeout=0.5)),
    Target("timeout of result", lambda world, v: _result(world, WORK, "finished", timeout=v)),
    Target("type of stats", lambda world, v: world.jobs.stats(v)),
    Target("type of counts", lambda world, v: world.jobs.counts(v)),
    Target("type of throughput", lambda world, v: world.jobs.throughput(v, since=FAR_AWAY)),
    Target("since of throughput", lambda world, v: world.jobs.throughput(WORK, since=v)),
    Target("until of throughput", lambda world, v: world.jobs.throughput(WORK, since=FAR_AWAY, until=v)),
    Target("resolution of throughput", lambda world, v: world.jobs.throughput(WORK, since=FAR_AWAY, resolution=v)),
    Target("type of page", lambda world, v: world.jobs.page(v)),
    Target("state of page", lambda world, v: world.jobs.page(WORK, state=v)),
    Target("limit of page", lambda world, v: world.jobs.page(WORK, limit=v)),
    Target("after of page", lambda world, v: world.jobs.page(WORK, after=v)),
    Target("prefix of page", lambda world, v: world.jobs.page(WORK, prefix=v)),
    Target("type of oldest_ready", lambda world, v: world.jobs.oldest_ready(v)),
    Target("max_jobs of run", lambda world, v: _run(world, max_jobs=v)),
    Target("types of run", lambda world, v: _run(world, types=v)),
]


# Handlers

_OPTIONS = tuple(HandlerOptions.__dataclass_fields__)

HANDLERS = [
    _registering("type of handler", lambda jobs, v: jobs.handler(v)(nothing)),
    _registering("function of handler", lambda jobs, v: jobs.handler("work")(v), passes_on=True),
    *(
        _registering(f"{name} of handler", lambda jobs, v, name=name: jobs.handler("work", **{name: v}))  # type: ignore[misc]
        for name in _OPTIONS
    ),
    _registering("period of every", lambda jobs, v: jobs.every(v)),
    _registering("type of every", lambda jobs, v: jobs.every(60, type=v)(nothing)),
    _registering("missed of every", lambda jobs, v: jobs.every(60, missed=v)),
    _registering("expression of cron", lambda jobs, v: jobs.cron(v)),
    _registering("timezone of cron", lambda jobs, v: jobs.cron("0 3 * * *", timezone=v)),
    _registering("type of cron", lambda jobs, v: jobs.cron("0 3 * * *", type=v)(nothing)),
    _registering("missed of cron", lambda jobs, v: jobs.cron("0 3 * * *", missed=v)),
    _registering("slots of commands", lambda jobs, v: jobs.commands(slots=v)),
    _registering("max_attempts of commands", lambda jobs, v: jobs.commands(max_attempts=v)),
    _registering("type of configure", lambda jobs, v: jobs.configure(v, slots=1)),
    Target("slots of configure", lambda world, v: _configure(world, slots=v)),
    Target("interval of configure", lambda world, v: _configure(world, interval=v)),
    _registering("settings of reload", lambda jobs, v: jobs.reload(v)),
    _raised("after of Retry", lambda v: Retry(v)),
    _raised("message of Retry", lambda v: Retry(message=v)),
    _raised("reason of Discard", lambda v: Discard(v)),
    _raised("seconds of Snooze", lambda v: Snooze(v)),
]


# What a running job has


def assert_about(error: JobsError, job: Job) -> None:
    """Fail unless an error says which job it is about."""
    assert (error.type, error.id) == (job.type, job.id)


def _of_running(name: str, operation: Callable[[RunningJob, Any], Awaitable[Result]], check: Check) -> Target:
    async def call(world: World, value: Any) -> Result:
        job = await world.running()
        try:
            return await operation(job, value)
        except InvalidJob as error:
            assert_about(error, job)
            raise
        finally:
            if check is nothing_stored:
                await world.jobs.remove(job.type, job.id, force=True)

    return Target(f"running job: {name}", call, check)


def _of_transaction(name: str, operation: Callable[[JobTransaction, RunningJob, Any], Awaitable[Result]]) -> Target:
    async def call(world: World, value: Any) -> Result:
        job = await world.running()
        try:
            return await world.jobs.transact(lambda tx: operation(tx, job, value))
        finally:
            await world.jobs.remove(job.type, job.id, force=True)

    return Target(f"transaction, running job: {name}", call)


RUNNING = [
    _of_running("data of update", lambda job, v: job.update(v), _data_is_stored),
    _of_running("data of finish", lambda job, v: job.finish(v), _data_is_stored),
    _of_running("outcome of finish", lambda job, v: job.finish(outcome=v), nothing_stored),
    _of_running("result of finish", lambda job, v: job.finish(result=v), nothing_stored),
    _of_running("error of finish", lambda job, v: job.finish(error=v), nothing_stored),
    _of_running("type of an error of finish", lambda job, v: job.finish(error=JobError(v, "no")), nothing_stored),
    _of_running("message of an error of finish", lambda job, v: job.finish(error=JobError("E", v)), nothing_stored),
    _of_running("done of progress", lambda job, v: job.progress(v), nothing_stored),
    _of_running("total of progress", lambda job, v: job.progress(1, v), nothing_stored),
    _of_running("message of progress", lambda job, v: job.progress(1, 2, v), nothing_stored),
    _of_running("data of resubmit", lambda job, v: job.resubmit(data=v), _data_is_stored),
    _of_running("priority of resubmit", lambda job, v: job.resubmit(priority=v), nothing_stored),
    _of_running("run_at of resubmit", lambda job, v: job.resubmit(run_at=v), nothing_stored),
    _of_transaction("data of update", lambda tx, job, v: tx.update(job, v)),
    _of_transaction("data of finish", lambda tx, job, v: tx.finish(job, v)),
    _of_transaction("outcome of finish", lambda tx, job, v: tx.finish(job, outcome=v)),
    _of_transaction("result of finish", lambda tx, job, v: tx.finish(job, result=v)),
    _of_transaction("error of finish", lambda tx, job, v: tx.finish(job, error=v)),
    _of_transaction("data of resubmit", lambda tx, job, v: tx.resubmit(job, data=v)),
    _of_transaction("priority of resubmit", lambda tx, job, v: tx.resubmit(job, priority=v)),
    _of_transaction("run_at of resubmit", lambda tx, job, v: tx.resubmit(job, run_at=v)),
    _of_transaction("id of resubmit", lambda tx, job, v: tx.resubmit(job, v)),  # type: ignore[call-overload]
    _of_transaction("job of update", lambda tx, job, v: tx.update(v)),
    _of_transaction("job of finish", lambda tx, job, v: tx.finish(v)),
    _of_transaction("job of release", lambda tx, job, v: tx.release(v)),
    _of_transaction("job of resubmit", lambda tx, job, v: tx.resubmit(v)),
]


# The application's own keys

OWN = b"own/"
BELOW_EVERYTHING = b"\x00\x00\x01"


def _of_kv(name: str, operation: Callable[[Any, Any], Any], *, reads: bool = False) -> list[Target]:
    """Return the target in a transaction that has written nothing yet, and in one that has."""

    def target(how: str, prepare: Callable[[Any], Any]) -> Target:
        async def call(world: World, value: Any) -> Result:
            async def work(tx: JobTransaction) -> Result:
                kv = prepare(tx.kv)
                result = operation(kv, value)
                return await result if reads else result

            result = await world.jobs.transact(work)
            if hasattr(type(result), "on_fire"):
                result.cancel()
            return result

        return Target(f"kv{how}: {name}", call)

    targets = [target("", lambda kv: kv), target(" with writes", _with_writes)]
    return [*targets, target(" snapshot", lambda kv: _with_writes(kv).snapshot)] if reads else targets


def _with_writes(kv: Any) -> Any:
    kv.set(b"own/set", b"1")
    kv.add(b"own/added", b"\x01")
    kv.clear_range(b"own/x", b"own/y")
    kv.set_versionstamped_value(b"own/stamped", b"\x00" * 14)
    return kv


def _delete_slice(kv: Any, start: Any, stop: Any, step: Any = None) -> None:
    del kv[start:stop:step]


KV = [
    *_of_kv("key of get", lambda kv, v: kv.get(v), reads=True),
    *_of_kv("keys of get_many", lambda kv, v: kv.get_many(v), reads=True),
    *_of_kv("a key of get_many", lambda kv, v: kv.get_many([OWN, v]), reads=True),
    *_of_kv("begin of get_range", lambda kv, v: kv.get_range(v, BELOW_EVERYTHING), reads=True),
    *_of_kv("end of get_range", lambda kv, v: kv.get_range(b"own/u", v), reads=True),
    *_of_kv("limit of get_range", lambda kv, v: kv.get_range(b"own/s", b"own/sf", limit=v), reads=True),
    *_of_kv("reverse of get_range", lambda kv, v: kv.get_range(b"own/s", b"own/sf", reverse=v), reads=True),
    *_of_kv("selector's key", lambda kv, v: kv.get_range(KeySelector(v, False, 1), b"\x00\x01"), reads=True),
    *_of_kv("selector's kind", lambda kv, v: kv.get_range(b"own/u", KeySelector(b"own/v", v, 1)), reads=True),
    *_of_kv("selector's offset", lambda kv, v: kv.get_range(b"p", KeySelector(b"p", False, v)), reads=True),
    *_of_kv("key of set", lambda kv, v: kv.set(v, b"x")),
    *_of_kv("value of set", lambda kv, v: kv.set(b"own/k", v)),
    *_of_kv("key of []", lambda kv, v: kv.__setitem__(v, b"x")),
    *_of_kv("value of []", lambda kv, v: kv.__setitem__(b"own/k", v)),
    *_of_kv("key of del", lambda kv, v: kv.__delitem__(v)),
    *_of_kv("start of del", lambda kv, v: _delete_slice(kv, v, BELOW_EVERYTHING) if v is not None else None),
    *_of_kv("stop of del", lambda kv, v: _delete_slice(kv, b"own/u", v)),
    *_of_kv("step of del", lambda kv, v: _delete_slice(kv, b"own/u", b"own/v", v)),
    *_of_kv("key of clear", lambda kv, v: kv.clear(v)),
    *_of_kv("begin of clear_range", lambda kv, v: kv.clear_range(v, BELOW_EVERYTHING)),
    *_of_kv("end of clear_range", lambda kv, v: kv.clear_range(b"own/u", v)),
    *_of_kv("key of add", lambda kv, v: kv.add(v, b"\x01")),
    *_of_kv("operand of add", lambda kv, v: kv.add(b"own/sum", v)),
    *_of_kv("key of set_versionstamped_key", lambda kv, v: kv.set_versionstamped_key(v, b"x")),
    *_of_kv(
        "value of set_versionstamped_key",
        lambda kv, v: kv.set_versionstamped_key(b"own/" + bytes(10) + b"\x04\x00\x00\x00", v),
    ),
    *_of_kv("key of set_versionstamped_value", lambda kv, v: kv.set_versionstamped_value(v, bytes(14))),
    *_of_kv("value of set_versionstamped_value", lambda kv, v: kv.set_versionstamped_value(b"own/v", v)),
    *_of_kv("stamp_key before", lambda kv, v: kv.stamp_key(v, b"", b"x")),
    *_of_kv("stamp_key after", lambda kv, v: kv.stamp_key(b"own/", v, b"x")),
    *_of_kv("stamp_value before", lambda kv, v: kv.stamp_value(b"own/w", v, b"")),
    *_of_kv("stamp_value after", lambda kv, v: kv.stamp_value(b"own/w", b"", v)),
    *_of_kv("key of add_read_conflict_key", lambda kv, v: kv.add_read_conflict_key(v)),
    *_of_kv("begin of add_read_conflict_range", lambda kv, v: kv.add_read_conflict_range(v, b"own/")),
    *_of_kv("end of add_read_conflict_range", lambda kv, v: kv.add_read_conflict_range(b"own/", v)),
    *_of_kv("key of watch", lambda kv, v: kv.watch(v)),
]

GROUPS = {"operations": ANYWHERE, "service": SERVICE, "handlers": HANDLERS, "running": RUNNING, "kv": KV}
