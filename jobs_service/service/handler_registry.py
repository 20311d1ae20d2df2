"""The handlers of a service or of a module, their surroundings, and changes of their options while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, Unpack

from jobs_service import json_data
from jobs_service.arguments import check_iterable, member
from jobs_service.durations import Duration
from jobs_service.errors import InvalidSettings, JobsError, a_kind_of, shown
from jobs_service.layer.keyspace import pack_type
from jobs_service.log import EventLog
from jobs_service.model import UNSET, JobType
from jobs_service.runner.functions import name_of, place_of
from jobs_service.runner.handler import Handler, Registration, is_payload, registration
from jobs_service.runner.options import KEEP_TICKS, HandlerKeywords, HandlerOptions, handler_options
from jobs_service.runner.payload import type_name
from jobs_service.runner.runner import Runner
from jobs_service.runner.schedule import Cron, Every, Missed, Schedule, parse_every
from jobs_service.runner.surroundings import Middleware, Provider, Surroundings, check_middleware, provider
from jobs_service.runner.ticker import Periodic as Periodic
from jobs_service.settings import HandlerSettings, Settings

log = EventLog("jobs_service")


class HandlerRegistry:
    """Keeps the handlers by type with their surroundings, and their options up to date.

    Args:
        is_part: whether it is that of a module, whose handlers a service includes.

    Attributes:
        handlers: by type, as packed.
        periodic: the periodic handlers.
        middleware: around the runs of all handlers, the outermost first.
        providers: of resources, by class, in the order of their opening.
        runner: the running Runner; None while no handlers run.
        prefix: put before the types of a part that was included; None before that.
    """

    def __init__(self, *, is_part: bool = False) -> None:
        self.handlers: dict[bytes, Handler[Any, Any]] = {}
        self.periodic: list[Periodic] = []
        self.middleware: list[Middleware] = []
        self.providers: dict[type[Any], Provider] = {}
        self.runner: Runner | None = None
        self.prefix: str | None = None
        self._is_part = is_part
        # By type: the middleware of the part that it was included with, and the options that the settings have
        # replaced, as they were before.
        self._inner: dict[bytes, list[Middleware]] = {}
        self._replaced: dict[bytes, dict[str, Any]] = {}

    # Registering

    def registration(self, type: JobType | None, options: HandlerOptions) -> Registration:
        """Return a decorator that makes a function a handler; see Handlers.handler."""
        return registration(type, options, self.register, self._is_resource)

    def register(self, handler: Handler[Any, Any]) -> None:
        """Add a handler.

        Raises:
            InvalidSettings: its type has another one, handlers run already, or nobody provides its resources.
        """
        self._check_open(handler.name)
        self._check_fits(handler, self.providers, handler.type)
        self.handlers[handler.packed] = handler

    def register_periodic(
        self, schedule: Schedule, type: JobType | None, missed: Missed | str, overlap: bool, options: HandlerOptions
    ) -> Registration:
        """Return a decorator that makes a function a periodic handler; see Handlers.every."""
        policy = checked_policy(missed, overlap)

        def keep(handler: Handler[Any, Any]) -> None:
            _check_periodic(handler)
            self.register(handler)
            self.periodic.append(Periodic(handler, schedule, policy, overlap))

        return registration(type, options, keep, self._is_resource)

    def add_middleware(self, function: Middleware) -> None:
        """Add middleware inside that which is there; see Handlers.middleware."""
        check_middleware(function)
        self._check_open(name_of(function))
        self.middleware.append(function)

    def provide(self, kind: type[Any], factory: Callable[..., Any]) -> None:
        """Add the provider of a class; see Handlers.provide."""
        new = provider(kind, factory, self.providers)
        self._check_open(new.place)
        _check_provider(new, self.providers)
        for handler in self.handlers.values():
            _check_arguments(handler, {new.kind: new})
        self.providers[new.kind] = new

    def include(self, part: HandlerRegistry, prefix: Any) -> None:
        """Take over what a module has registered; see JobsService.include."""
        if not isinstance(prefix, str):
            raise InvalidSettings(f"prefix={shown(prefix)}: {a_kind_of(prefix)}; allowed is str")
        if part.prefix is not None and part.prefix != prefix:
            raise InvalidSettings(f"prefix={shown(prefix)}: these Handlers have another one, {shown(part.prefix)}")
        self._check_open("include")
        types = {
            handler.packed: handler.type if part.prefix is not None else _with_prefix(prefix, handler)
            for handler in part.handlers.values()
        }
        providers = {**part.providers, **self.providers}
        for new in part.providers.values():
            _check_provider(new, self.providers)
        for packed, handler in part.handlers.items():
            self._check_fits(handler, providers, types[packed])
        for handler in self.handlers.values():
            _check_arguments(handler, part.providers)
        # All is well: from here on nothing is refused.
        if part.prefix is None:
            for handler in part.handlers.values():
                handler.move(prefix)
            part.handlers = {handler.packed: handler for handler in part.handlers.values()}
            part.prefix = prefix
        self.providers |= {kind: new for kind, new in part.providers.items() if kind not in self.providers}
        self.handlers |= part.handlers
        self.periodic += part.periodic
        self._inner |= dict.fromkeys(part.handlers, part.middleware)

    def surroundings(self) -> Surroundings:
        """Return the surroundings of the handlers' runs, for a runner."""
        outer = self.middleware
        return Surroundings(
            {packed: (*outer, *self._inner.get(packed, ())) for packed in self.handlers}, dict(self.providers)
        )

    def _check_open(self, what: str) -> None:
        if self.runner is not None:
            raise InvalidSettings(f"{what}: handlers, and hooks around them, are registered before they run")
        if self.prefix is not None:
            raise InvalidSettings(f"{what}: a service has included these Handlers already; register it before that")

    def _is_resource(self, kind: type[Any]) -> bool:
        """Whether a class names a resource: of a part also one that the service may provide."""
        return kind in self.providers or (self._is_part and not is_payload(kind))

    def _check_fits(self, handler: Handler[Any, Any], providers: Mapping[type[Any], Provider], type: JobType) -> None:
        """Raise InvalidSettings for a handler of a type that has another one, or whose resources nobody provides."""
        known = self.handlers.get(pack_type(type), handler)
        if known is not handler:
            raise InvalidSettings(
                f"type {shown(type)} has a handler already: {place_of(known.function)}; "
                f"{place_of(handler.function)} would be another one"
            )
        _check_arguments(handler, providers)
        missing = next((each for each in handler.resources.items() if each[1] not in providers), None)
        if missing is not None and not self._is_part:
            raise InvalidSettings(
                f"{handler.name} cannot be a handler: nothing provides its parameter {missing[0]}; before it goes "
                f"jobs.provide({type_name(missing[1])}, ...)"
            )

    # Finding

    def of_types(self, types: Iterable[JobType] | None) -> list[Handler[Any, Any]]:
        """Return the handlers of these types, of all for None.

        Raises:
            InvalidSettings: there is no handler, or none for one of the types.
        """
        if not self.handlers:
            raise InvalidSettings("there is nothing to run: make a function a handler with @jobs.handler(type)")
        if types is None:
            return [*self.handlers.values()]
        wanted = {handler.packed: handler for handler in map(self.of_type, check_iterable("types", types))}
        if not wanted:
            raise InvalidSettings("types: no type is named; None is for all that have handlers")
        return [*wanted.values()]

    def of_type(self, type: JobType) -> Handler[Any, Any]:
        """Return the handler of a type; raises InvalidSettings when there is none."""
        handler = self.handlers.get(pack_type(type))
        if handler is None:
            there = [handler.type for handler in self.handlers.values()]
            raise InvalidSettings(f"type {shown(type)} has no handler; there are {shown(there)}")
        return handler

    # Options

    def configure(self, type: JobType, changes: Mapping[str, Any]) -> None:
        """Change options of a handler; see JobsService.configure."""
        handler = self.of_type(type)
        self._change(handler, changes)
        # When the settings no longer name these options, the values given here stay.
        for name in changes:
            self._replaced.get(handler.packed, {}).pop(name, None)

    def apply(self, settings: Settings) -> None:
        """Take options from other settings; see JobsService.reload."""
        for each, handler in self.handlers.items():
            wanted = settings.handlers.get(_name_in_settings(handler.type), HandlerSettings())
            options = wanted.model_dump(exclude_none=True)
            before = self._replaced.get(each, {})
            self._replaced[each] = {name: before.get(name, getattr(handler.options, name)) for name in options}
            self._change(handler, {**before, **options})
        unknown = {*settings.handlers} - {_name_in_settings(each.type) for each in self.handlers.values()}
        if unknown:
            log.warning("settings_without_handler", types=sorted(unknown))

    def _change(self, handler: Handler[Any, Any], changes: Mapping[str, Any]) -> None:
        if not changes:
            return
        handler.options = handler.options.with_changes(**changes)
        if self.runner is not None:
            self.runner.options_changed(handler)


def check_settings(settings: Any) -> None:
    """Raise InvalidSettings for a value that is no Settings object."""
    if not isinstance(settings, Settings):
        raise InvalidSettings(f"settings {shown(settings)}: {a_kind_of(settings)}; allowed are Settings")


def checked_policy(missed: Any, overlap: Any) -> Missed:
    """Return the policy for missed ticks; raise InvalidSettings for one that there is not, or an odd `overlap`."""
    policy = member(Missed, missed)
    if policy is None:
        raise InvalidSettings(f"missed={shown(missed)}: allowed are {', '.join(repr(str(each)) for each in Missed)}")
    if overlap is not True and overlap is not False:
        raise InvalidSettings(f"overlap={shown(overlap)}: allowed are True and False")
    return policy


def _check_provider(new: Provider, known: Mapping[type[Any], Provider]) -> None:
    """Raise InvalidSettings if another function provides the same class already."""
    before = known.get(new.kind, new)
    if before.factory is not new.factory:
        raise InvalidSettings(f"{type_name(new.kind)} is provided twice: by {before.place} and by {new.place}")


def _check_arguments(handler: Handler[Any, Any], providers: Mapping[type[Any], Provider]) -> None:
    """Raise InvalidSettings if a class of a handler's arguments is provided as well."""
    for name, kind in handler.annotations.items():
        if kind in providers:
            raise InvalidSettings(
                f"{handler.name} has {type_name(kind)} for its argument {name}, and {providers[kind].place} provides "
                "it: provide it before the handler, if it is a resource"
            )


def _with_prefix(prefix: str, handler: Handler[Any, Any]) -> JobType:
    if not prefix:
        return handler.type
    if not isinstance(handler.type, str):
        raise InvalidSettings(f"prefix={shown(prefix)}: the type {shown(handler.type)} of {handler.name} is no string")
    return prefix + handler.type


def _check_periodic(handler: Handler[Any, Any]) -> None:
    """Raise InvalidSettings if a handler cannot be periodic because it needs arguments."""
    if handler.required:
        raise InvalidSettings(
            f"{handler.name} cannot be a periodic handler: nobody gives it {', '.join(handler.required)}; "
            "give these parameters defaults, or let it take nothing but the job"
        )
    try:
        json_data.encode(handler.data(UNSET))
    except JobsError as error:
        raise InvalidSettings(
            f"{handler.name} cannot be a periodic handler: its default is no argument: {error}"
        ) from None


def _name_in_settings(type: JobType) -> str:
    """Return the name of a type in the settings."""
    return type if isinstance(type, str) else repr(type)


# The handlers of a module


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
        resource. The return value is the job's result. An exception is the job's error, and the job runs again later,
        unless its attempts are used up; the exceptions Retry, Snooze and Discard change that.

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
