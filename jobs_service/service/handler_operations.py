"""A service's operations on handlers: registering and configuring them."""

from __future__ import annotations

from typing import Any, Unpack

from jobs_service.durations import Duration
from jobs_service.model import JobType
from jobs_service.model.terms import exact_type
from jobs_service.runner.commands import command_handler
from jobs_service.runner.handler import Handler
from jobs_service.runner.options import KEEP_TICKS, Changes, Options, handler_options
from jobs_service.runner.registration import Registration, registration
from jobs_service.runner.runner import SlotUse
from jobs_service.runner.schedule import Cron, Every, Missed, parse_every
from jobs_service.runner.ticker import Periodic
from jobs_service.service.handler_registry import HandlerRegistry, check_settings
from jobs_service.settings import Settings


class HandlerOperations:
    """The part of JobsService about handlers."""

    settings: Settings
    _registry: HandlerRegistry

    def handler(self, type: JobType, **options: Unpack[Options]) -> Registration:
        """Return a decorator that makes a function the handler of a type: `run` calls it for each of the type's jobs.

        The function is a coroutine function, or a plain function, which runs in a thread of its own. It is called as
        `f(job)`, `f(args)`, `f(job, args)` or `f()`: the parameter named `job` gets the RunningJob (in a plain function
        a BlockingJob), the other one the job's data, decoded by its annotation: a dataclass, TypedDict, msgspec.Struct,
        pydantic model or JSON type. The return value is the job's result. An exception is the job's error, and the job
        runs again later, unless its attempts are used up; the exceptions Retry, Snooze and Discard change that.

        Args:
            type: of the jobs.
            options: see HandlerOptions.

        Raises:
            InvalidSettings: an option out of range, a function that cannot be a handler, or a second handler.
        """
        return registration(type, handler_options(options), self._registry.register)

    def every(
        self,
        period: Duration,
        *,
        type: JobType | None = None,
        missed: Missed | str = Missed.ONCE,
        overlap: bool = False,
        **options: Unpack[Options],
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
        return self._registry.register_periodic(
            Every(parse_every(period)), type, missed, overlap, handler_options(options, keep=KEEP_TICKS)
        )

    def cron(
        self,
        expression: str,
        *,
        timezone: str = "UTC",
        type: JobType | None = None,
        missed: Missed | str = Missed.ONCE,
        overlap: bool = False,
        **options: Unpack[Options],
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
        return self._registry.register_periodic(
            Cron(expression, timezone), type, missed, overlap, handler_options(options, keep=KEEP_TICKS)
        )

    def commands(self, **options: Unpack[Options]) -> None:
        """Run command jobs in this service: every program that can add jobs to the store can then run any command here.

        Args:
            options: see HandlerOptions; commands have one attempt unless max_attempts says otherwise.

        Raises:
            InvalidSettings: as `handler`.
        """
        options.setdefault("max_attempts", 1)
        self._registry.register(command_handler(handler_options(options)))

    @property
    def periodic(self) -> dict[JobType, Periodic]:
        """The periodic handlers by type, with their schedules and policies for missed ticks."""
        return {exact_type(each.handler.type): each for each in self._registry.periodic}

    @property
    def handlers(self) -> dict[JobType, Handler[Any, Any]]:
        """The handlers by type."""
        return {exact_type(handler.type): handler for handler in self._registry.handlers.values()}

    def slot_uses(self) -> dict[JobType, SlotUse]:
        """Return the slots, and the busy ones among them, of the handlers that `run` runs in this process, by type."""
        runner = self._registry.runner
        return {} if runner is None else runner.slot_uses()

    def configure(self, type: JobType, **changes: Unpack[Changes]) -> None:
        """Change options of a handler, also while it runs.

        Args:
            type: of the handler's jobs.
            changes: slots, max_churn, interval, max_history.

        Raises:
            InvalidSettings: there is no such handler, an option is unknown, or a value is out of range.
        """
        self._registry.configure(type, changes)

    def reload(self, settings: Settings) -> None:
        """Take handlers' options from other settings, also while they run. Nothing else of the settings changes.

        An option that the settings no longer name returns to its registered value, or to the value set by `configure`.

        Args:
            settings: their `handlers` holds slots, max_churn, interval and max_history by type.

        Raises:
            InvalidSettings: not a Settings object.
        """
        check_settings(settings)
        self.settings = self.settings.model_copy(update={"handlers": settings.handlers})
        self._registry.apply(settings)
