"""What a service offers about handlers: registering and configuring them."""

from __future__ import annotations

from typing import Any, Unpack

from jobs_service.durations import Duration
from jobs_service.model import JobType
from jobs_service.runner.commands import command_handler
from jobs_service.runner.handler import Handler
from jobs_service.runner.options import KEEP_TICKS, Changes, Options, handler_options
from jobs_service.runner.registration import Registration, registration
from jobs_service.runner.runner import SlotUse
from jobs_service.runner.schedule import Cron, Every, Missed, parse_every
from jobs_service.runner.stats import exact_type
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
        `f(job)`, `f(args)`, `f(job, args)` or `f()`: the parameter named `job` gets the RunningJob (of a plain function
        a BlockingJob), the other one the job's data, decoded as its annotation says: a dataclass, TypedDict,
        msgspec.Struct, pydantic model or JSON type. What it returns is the job's result. What it raises is the job's
        error, and the job runs again later, unless its attempts are used up; the exceptions Retry, Snooze and Discard
        say otherwise.

        Args:
            type: of the jobs.
            options: see HandlerOptions.

        Raises:
            InvalidSettings: an option outside its range, a function that cannot be a handler, or a second handler.
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
        """Return a decorator that makes a function the handler of jobs that come by themselves, one per period.

        There is one job per tick, however many processes run the handler; its id is the tick's time in UTC. The ticks
        of a period are its multiples since the epoch.

        Args:
            period: a duration: seconds, a timedelta, or a text such as "90s", "5m", "1h30m", "2d".
            type: of the jobs; None for the function's name.
            missed: what happens to ticks at which no process ran, the type was paused, or the job of the tick before
                had not finished: "skip", "once" (one job for the newest of them) or "all" (jobs for the newest 100).
            overlap: whether a tick's job may run while that of the tick before it has not finished.
            options: see HandlerOptions.

        Raises:
            InvalidJob: a period that cannot be.
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
        """Return a decorator that makes a function the handler of jobs that come at the times of a cron expression.

        Args:
            expression: minute, hour, day of month, month, day of week.
            timezone: in which its times are, by IANA name.
            type, missed, overlap, options: as for `every`.

        Raises:
            InvalidJob: a cron expression or a time zone that cannot be.
            InvalidSettings: as `handler`.
        """
        return self._registry.register_periodic(
            Cron(expression, timezone), type, missed, overlap, handler_options(options, keep=KEEP_TICKS)
        )

    def commands(self, **options: Unpack[Options]) -> None:
        """Run command jobs in this service: whoever can add jobs to the store can then run any command here.

        Args:
            options: see HandlerOptions; commands have one attempt unless max_attempts says otherwise.

        Raises:
            InvalidSettings: as `handler`.
        """
        options.setdefault("max_attempts", 1)
        self._registry.register(command_handler(handler_options(options)))

    @property
    def periodic(self) -> dict[JobType, Periodic]:
        """The periodic handlers by type: their schedules, and what happens to ticks that were missed."""
        return {exact_type(each.handler.type): each for each in self._registry.periodic}

    @property
    def handlers(self) -> dict[JobType, Handler[Any, Any]]:
        """The handlers by type."""
        return {exact_type(handler.type): handler for handler in self._registry.handlers.values()}

    def slot_uses(self) -> dict[JobType, SlotUse]:
        """Return what the handlers that `run` runs in this process do: slots, and how many are taken, by type."""
        runner = self._registry.runner
        return {} if runner is None else runner.slot_uses()

    def configure(self, type: JobType, **changes: Unpack[Changes]) -> None:
        """Change options of a handler, also while it runs.

        Args:
            type: of the handler's jobs.
            changes: slots, max_churn, interval, max_history.

        Raises:
            InvalidSettings: there is no such handler, another option, or a value outside its range.
        """
        self._registry.configure(type, changes)

    def reload(self, settings: Settings) -> None:
        """Take handlers' options from other settings, also while they run. Nothing else of the settings changes.

        An option that the settings do not name any more is again as it was registered, or as `configure` has set it.

        Args:
            settings: their `handlers` holds slots, max_churn, interval and max_history by type.

        Raises:
            InvalidSettings: not a Settings object.
        """
        check_settings(settings)
        self.settings = self.settings.model_copy(update={"handlers": settings.handlers})
        self._registry.apply(settings)
