"""What a handler is registered with: every option with its default, unit and range, checked once. Floor: runner."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict, Unpack

from jobs_service.errors import InvalidSettings, a_kind_of, in_one_line, meant, shown
from jobs_service.layer.keyspace import exact_int, exact_seconds
from jobs_service.model import RunningJob

Continuous: TypeAlias = bool | Callable[[RunningJob], bool]
"""Whether jobs hold their slot for long: all or none of them, or a function that tells of each."""

_LONGEST: Final = 1e9
_DAY: Final = 86_400.0

KEEP: Final = 7 * _DAY
"""How long jobs that succeeded are kept unless their handler says otherwise: a store does not grow for ever, and who
looks after a weekend still finds them."""

KEEP_TICKS: Final = _DAY
"""The same for periodic jobs: they come by themselves, and nobody waits for one of last week."""

HEALTH_THRESHOLD: Final = 120.0
"""Seconds that a job runs before a crash starts a new row of crashes."""

JITTER: Final = 0.1
"""Share of a pause that is added at random: jobs that have crashed together do not come back together."""


class Changes(TypedDict, total=False):
    """The options that can change while the handler runs."""

    slots: int
    max_churn: int
    interval: float
    max_history: int


class Options(TypedDict, total=False):
    """What a handler may be registered with; see HandlerOptions."""

    slots: int
    max_attempts: int | None
    timeout: float
    health_threshold: float
    backoff: float
    jitter: float
    max_history: int
    continuous: Continuous
    fifo: bool
    interval: float
    max_churn: int
    grace: float
    time_limit: float | None
    keep: float | None
    keep_failed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """How the jobs of one handler are run; times in seconds.

    Attributes:
        slots: jobs that one process runs at the same time; 0 for none.
        max_attempts: runs that may fail before the job has failed for good; 1 never retries, None retries for ever.
        timeout: the activity timeout that the type is made with when it has none.
        health_threshold: a job that ran so long without a crash is taken for healthy.
        backoff: pause after the first crash; it doubles with each crash that follows, up to 1024 times.
        jitter: up to this share of the pause is added to it at random, 0 to 1.
        max_history: events that a job's history keeps.
        continuous: whether its jobs hold a slot for long, and so take turns; may be a function of the RunningJob.
        fifo: whether jobs are accepted in exact order even where processes collide on the queue; otherwise they spread
            over it then.
        interval: between two rotations of continuous jobs.
        max_churn: continuous jobs that one rotation stops at most for others that wait.
        grace: what a stopped or canceled handler may take to end.
        time_limit: what one run may take; None for as long as it likes.
        keep: how long jobs that succeeded or were canceled are kept; None for ever. Of periodic jobs a day by default.
        keep_failed: the same for jobs that failed.

    Raises:
        InvalidSettings: a value is outside its range; the message says option, value and range.
    """

    slots: int = 10
    max_attempts: int | None = 10
    timeout: float = 60.0
    health_threshold: float = HEALTH_THRESHOLD
    backoff: float = 30.0
    jitter: float = JITTER
    max_history: int = 20
    continuous: Continuous = False
    fifo: bool = False
    interval: float = 60.0
    max_churn: int = 20
    grace: float = 10.0
    time_limit: float | None = None
    keep: float | None = KEEP
    keep_failed: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "continuous":
                _check_continuous(value)
            elif field.name == "fifo":
                _check_fifo(value)
            else:
                object.__setattr__(self, field.name, _RANGES[field.name].checked(field.name, value))

    def with_changes(self, **changes: Unpack[Changes]) -> HandlerOptions:
        """Return the options with some changed: slots, max_churn, interval and max_history may.

        Raises:
            InvalidSettings: another option, or a value outside its range.
        """
        for name, value in changes.items():
            if name not in Changes.__annotations__:
                refused = f"option {in_one_line(str(name), 40)}={shown(value)}: it cannot change while the handler runs"
                raise InvalidSettings(f"{refused}; only {', '.join(Changes.__annotations__)} can")
        return replace(self, **changes)


def handler_options(given: Mapping[str, Any], **defaults: Any) -> HandlerOptions:
    """Return the options that a handler was registered with, given defaults of its kind.

    Raises:
        InvalidSettings: there is no such option, or a value is outside its range.
    """
    for name, value in given.items():
        if name not in Options.__annotations__:
            raise InvalidSettings(
                f"there is no option {in_one_line(name, 40)}={shown(value)}{meant(name, Options.__annotations__)}"
            )
    return HandlerOptions(**{**defaults, **given})


class _Range(NamedTuple):
    """The numbers that an option may have."""

    kind: type[int] | type[float]
    least: float
    most: float
    above: bool = False
    optional: bool = False

    def checked(self, name: str, value: Any) -> Any:
        """Return the value as the number it is, or refuse it."""
        if value is None and self.optional:
            return None
        try:
            # A bool is an int to Python, and never meant as a number.
            number = exact_int(value) if self.kind is int else exact_seconds(value)
        except OverflowError:
            number = None
        if number is not None and self._holds(number):
            return number
        raise InvalidSettings(f"option {name}={shown(value)}: allowed is {self}")

    def _holds(self, value: float) -> bool:
        return (self.least < value if self.above else self.least <= value) and value <= self.most

    def __str__(self) -> str:
        kind = "an integer" if self.kind is int else "a number"
        sign = ">" if self.above else ">="
        none = ", or None" if self.optional else ""
        return f"{kind} {sign} {self.least:.0f} and <= {self.most:.0f}{none}"


_RANGES: Final = {
    "slots": _Range(int, 0, 100_000),
    "max_attempts": _Range(int, 1, 65_535, optional=True),
    "timeout": _Range(float, 0, _LONGEST, above=True),
    "health_threshold": _Range(float, 0, _LONGEST),
    "backoff": _Range(float, 0, _DAY),
    "jitter": _Range(float, 0, 1),
    "max_history": _Range(int, 1, 100),
    "interval": _Range(float, 0, _DAY, above=True),
    "max_churn": _Range(int, 0, 100_000),
    "grace": _Range(float, 0, _DAY),
    "time_limit": _Range(float, 0, _LONGEST, above=True, optional=True),
    "keep": _Range(float, 0, _LONGEST, optional=True),
    "keep_failed": _Range(float, 0, _LONGEST, optional=True),
}


def _check_continuous(value: Any) -> None:
    kind = type(value)
    if inspect.iscoroutinefunction(value):
        raise InvalidSettings(
            f"option continuous={shown(value)}: it is asked as a job is accepted, and cannot be async"
        )
    if kind is not bool and (not callable(value) or issubclass(kind, type)):
        raise InvalidSettings(
            f"option continuous={shown(value)}: {a_kind_of(value)}; allowed are True, False and a function of the job"
        )


def _check_fifo(value: Any) -> None:
    if value is not True and value is not False:
        raise InvalidSettings(f"option fifo={shown(value)}: {a_kind_of(value)}; allowed are True and False")
