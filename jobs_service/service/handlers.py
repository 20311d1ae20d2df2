"""The handlers of a module, with their schedules, middleware and resources; a service includes them.

JobsService is made of it: a program of one module needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from jobs_service.durations import Duration
from jobs_service.model import JobType
from jobs_service.runner.handler import Handler, Registration
from jobs_service.runner.options import KEEP_TICKS, HandlerKeywords, handler_options
from jobs_service.runner.schedule import Cron, Every, Missed, parse_every
from jobs_service.runner.surroundings import Middleware
from jobs_service.runner.ticker import Periodic
from jobs_service.service.handler_registry import HandlerRegistry

MiddlewareT = TypeVar("MiddlewareT", bound=Middleware)


class Handlers:
    """Handlers that belong together, in a module of their own; `JobsService.include` has a service run them."""

    def __init__(self) -> None:
        self._registry = HandlerRegistry(is_part=True)

    def handler(self, type: JobType, **options: Unpack[HandlerKeywords]) -> Registration:
        """Return a decorator that makes a function the handler of a type: `run` calls it for each of the type's jobs.

        The function is a coroutine function, or a plain function, which runs in a thread of its own. It is called as
        `f(job)`, `f(args)`, `f(job, args)` or `f()`: the parameter named `job` gets the RunningJob (in a plain function
        a BlockingJob), the other one the job's data, decoded by its annotation: a dataclass, TypedDict, msgspec.Struct,
        pydantic model or JSON type. A parameter that is annotated with a class that `provide` was called with gets that
        resource. The return value is the job's result. An exception is the job's error, and the job
        runs again later, unless its attempts are used up; the exceptions Retry, Snooze and Discard change that.

        Args:
            type: of the jobs.
            options: see HandlerOptions.

        Raises:
            InvalidSettings: an option out of range, a function that cannot be a handler, or a second handler.
        """
        return self._registry.registration(type, handler_options(options))

    def every(
        self,
        period: Duration,
        *,
        type: JobType | None = None,
        missed: Missed | str = Missed.ONCE,
        overlap: bool = False,
        **options: Unpack[HandlerKeywords],
    ) -> Registration:
        """Return a decorator that makes a function the handler of periodic jobs, one per period.

        There is one job per tick, however many processes run the handler; its id is the tick's time in UTC. The ticks
        of a period are its multiples since the epoch.

        Args:
            period: a duration: seconds, a timedelta, or a text such as "90s", "5m", "1h30m", "2d".
            type: of the jobs; None for the function's name.
            missed: policy for ticks at which no process ran, the type was paused, or the previous tick's job had not
                finished: "skip", "once" (one job for the newest of them) or "all" (jobs for the newest 100).
            overlap: whether a tick's job may run before the previous tick's job has finished.
            options: see HandlerOptions.

        Raises:
            InvalidJob: an invalid period.
            InvalidSettings: as `handler`.
        """
        schedule, wanted = Every(parse_every(period)), handler_options(options, keep=KEEP_TICKS)
        return self._registry.register_periodic(schedule, type, missed, overlap, wanted)

    def cron(
        self,
        expression: str,
        *,
        timezone: str = "UTC",
        type: JobType | None = None,
        missed: Missed | str = Missed.ONCE,
        overlap: bool = False,
        **options: Unpack[HandlerKeywords],
    ) -> Registration:
        """Return a decorator that makes a function the handler of periodic jobs at the times of a cron expression.

        Args:
            expression: minute, hour, day of month, month, day of week.
            timezone: of the expression's times, an IANA name.
            type, missed, overlap, options: as for `every`.

        Raises:
            InvalidJob: an invalid cron expression or time zone.
            InvalidSettings: as `handler`.
        """
        schedule, wanted = Cron(expression, timezone), handler_options(options, keep=KEEP_TICKS)
        return self._registry.register_periodic(schedule, type, missed, overlap, wanted)

    def middleware(self, function: MiddlewareT) -> MiddlewareT:
        """Have a coroutine function called around each run of these handlers: a decorator.

        It is called with the RunningJob and `call_next`; `await call_next()` runs the handler and returns its result,
        or raises its exception. What the function returns or raises counts as the handler's. The first one that is
        registered is outermost; those of a service are around those of the Handlers that it includes.

        Args:
            function: `async def f(job, call_next)`.

        Raises:
            InvalidSettings: it is no such function, or handlers run already.
        """
        self._registry.add_middleware(function)
        return function

    def provide(self, kind: type[Any], factory: Callable[..., Any]) -> None:
        """Provide a resource to the handlers that name its class as the annotation of a parameter.

        It is opened once for each `run`, before the first job is accepted, if a handler of that run needs it; and
        closed after the last handler has ended, in the reverse order.

        Args:
            kind: the class; provide it before the handlers that name it.
            factory: returns the resource, or a context manager, plain or async, whose value it is; may be a coroutine
                function, or a generator function that yields the resource once. Its own parameters get resources too.

        Raises:
            InvalidSettings: another function provides the class, a handler has it for its arguments, nothing provides
                a parameter of the factory, or handlers run already.
        """
        self._registry.provide(kind, factory)

    @property
    def handlers(self) -> dict[JobType, Handler[Any, Any]]:
        """The handlers by type."""
        return {handler.type: handler for handler in self._registry.handlers.values()}

    @property
    def periodic(self) -> dict[JobType, Periodic]:
        """The periodic handlers by type, with their schedules and policies for missed ticks."""
        return {each.handler.type: each for each in self._registry.periodic}
