"""What is said before handlers run: who they are, and their options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobs_service import Discard, Handlers, JobsError, JobsService, Retry, Snooze
from jobs_service.runner.options import HandlerOptions
from tests.hostile.world import SETTINGS, Target, World

_OPTIONS = tuple(HandlerOptions.__dataclass_fields__)


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
    _registering("function of middleware", lambda jobs, v: jobs.middleware(v), passes_on=True),
    _registering("class of provide", lambda jobs, v: jobs.provide(v, nothing), passes_on=True),
    _registering("factory of provide", lambda jobs, v: jobs.provide(World, v), passes_on=True),
    _registering("handlers of include", lambda jobs, v: jobs.include(v)),
    _registering("prefix of include", lambda jobs, v: jobs.include(Handlers(), prefix=v)),
    _registering("settings of reload", lambda jobs, v: jobs.reload(v)),
    _raised("after of Retry", lambda v: Retry(v)),
    _raised("message of Retry", lambda v: Retry(message=v)),
    _raised("reason of Discard", lambda v: Discard(v)),
    _raised("seconds of Snooze", lambda v: Snooze(v)),
]
