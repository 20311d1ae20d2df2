"""The handlers of one service, their periodic schedules, and changes of their options while they run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jobs_service import json_data
from jobs_service.arguments import check_iterable, member
from jobs_service.errors import InvalidSettings, JobsError, a_kind_of, shown
from jobs_service.layer.keyspace import pack_type
from jobs_service.log import EventLog
from jobs_service.model import UNSET, JobType
from jobs_service.runner.handler import Handler, Registration, registration
from jobs_service.runner.options import HandlerOptions
from jobs_service.runner.runner import Runner
from jobs_service.runner.schedule import Missed, Schedule
from jobs_service.runner.ticker import Periodic as Periodic
from jobs_service.settings import HandlerSettings, Settings

log = EventLog("jobs_service")


class HandlerRegistry:
    """Keeps the handlers by type, and their options up to date.

    Attributes:
        handlers: by type, as packed.
        periodic: the periodic handlers.
        runner: the running Runner; None while no handlers run.
    """

    def __init__(self) -> None:
        self.handlers: dict[bytes, Handler[Any, Any]] = {}
        self.periodic: list[Periodic] = []
        self.runner: Runner | None = None
        # By type: the options that the settings have replaced, as they were before.
        self._replaced: dict[bytes, dict[str, Any]] = {}

    # Registering

    def register(self, handler: Handler[Any, Any]) -> None:
        """Add a handler; raises InvalidSettings when its type has another one, or handlers run already."""
        if self.runner is not None:
            raise InvalidSettings(f"{handler.name}: handlers are registered before they run")
        known = self.handlers.setdefault(handler.packed, handler)
        if known is not handler:
            raise InvalidSettings(f"type {shown(handler.type)} has a handler already: {known.name}")

    def register_periodic(
        self, schedule: Schedule, type: JobType | None, missed: Missed | str, overlap: bool, options: HandlerOptions
    ) -> Registration:
        """Return a decorator that makes a function a periodic handler; see JobsService.every."""
        policy = member(Missed, missed)
        if policy is None:
            raise InvalidSettings(
                f"missed={shown(missed)}: allowed are {', '.join(repr(str(each)) for each in Missed)}"
            )
        if overlap is not True and overlap is not False:
            raise InvalidSettings(f"overlap={shown(overlap)}: allowed are True and False")

        def keep(handler: Handler[Any, Any]) -> None:
            _check_periodic(handler)
            self.register(handler)
            self.periodic.append(Periodic(handler, schedule, policy, overlap))

        return registration(type, options, keep)

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
        # If the settings name these options no more one day, the values given here stay.
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
