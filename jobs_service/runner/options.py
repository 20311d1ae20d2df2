"""The options of a handler: each with a default, a unit and a range, checked at the handler's registration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypedDict, Unpack, cast, get_origin, get_type_hints

from jobs_service.arguments import check_duration, exact_int, exact_number
from jobs_service.durations import Bounds, Duration, bytes_of
from jobs_service.errors import InvalidSettings, a_kind_of, in_one_line, meant, shown
from jobs_service.model import RunningJob
from jobs_service.redaction import Redaction

Continuous: TypeAlias = bool | Callable[[RunningJob], bool]
"""Whether jobs hold their slot for long: all, none, or by a function of the job."""

_DAY: Final = 86_400.0

KEEP: Final = 7 * _DAY
"""Default seconds for which succeeded jobs are kept. The store does not grow for ever, and a weekend's jobs are still
there on Monday.
"""

KEEP_TICKS: Final = _DAY
"""The same for periodic jobs: no caller has added them, and last week's are rarely missed."""

HEALTH_THRESHOLD: Final = 120.0
"""Seconds of a run after which a crash starts a new row of crashes."""

JITTER: Final = 0.1
"""Largest random share that is added to a pause: jobs that crashed together do not run again together."""


class ChangeableOptions(TypedDict, total=False):
    """The options that can change while the handler runs."""

    slots: int
    max_churn: int
    interval: Duration
    max_history: int


class HandlerKeywords(ChangeableOptions, total=False):
    """The options that a handler may be registered with, for type checkers; see HandlerOptions."""

    max_attempts: int | None
    timeout: Duration
    health_threshold: Duration
    backoff: Duration
    jitter: float
    continuous: Continuous
    fifo: bool
    grace: Duration
    time_limit: Duration | None
    keep: Duration | None
    keep_failed: Duration | None
    redact: Iterable[str] | None
    isolated: bool
    memory_limit: int | str | None


class Range(NamedTuple):
    """The allowed numbers of an option.

    Attributes:
        kind: int, or float for floats and ints.
        least, most: the bounds, both allowed.
        above: whether `least` itself is forbidden.
        optional: whether None is allowed.
        is_size: whether it is a number of bytes, which may be text such as 500M.
    """

    kind: type[int] | type[float]
    least: float
    most: float
    above: bool = False
    optional: bool = False
    is_size: bool = False

    def checked(self, name: str, value: Any) -> Any:
        """Return a value as an int or a float, according to `kind`.

        Raises:
            InvalidSettings: it is not allowed.
        """
        if value is None and self.optional:
            return None
        given = bytes_of(value) if self.is_size and isinstance(value, str) else value
        try:
            number = exact_int(given) if self.kind is int else exact_number(given)
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
        if self.is_size:
            none = f", such text as 500M{none}"
        return f"{kind} {sign} {self.least:.0f} and <= {self.most:.0f}{none}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """The options of one handler; durations are given as seconds, timedelta or text, and kept in seconds.

    Attributes:
        slots: jobs that one process runs at the same time; 0 for none.
        max_attempts: runs that may fail before the job has failed for good; 1 never retries, None retries for ever.
        timeout: the activity timeout of the type, unless an operator has set another one.
        health_threshold: a crash after a run of more than this time is the first of a new row of crashes.
        backoff: pause after the first crash of a row; it doubles with each crash that follows, up to 1024 times.
        jitter: up to this share of the pause is added to it at random, 0 to 1.
        max_history: events that a job's history keeps.
        continuous: whether its jobs hold a slot for long, and so take turns; may be a function of the RunningJob.
        fifo: whether jobs are accepted in exact order even when processes collide on the queue. Otherwise
            colliding processes take jobs from different parts of the front of the queue.
        interval: time between two rotations of continuous jobs.
        max_churn: most continuous jobs that one rotation stops for waiting ones.
        grace: time that a stopped or canceled handler has to end.
        time_limit: time that one run may take; None for no limit.
        keep: how long jobs that succeeded or were canceled are kept; None for ever. Of periodic jobs a day by default.
        keep_failed: the same for jobs that failed.
        redact: paths of the fields of data, result, error and progress that are secret, such as "card.number"; see
            Redaction. None keeps the type's current paths.
        isolated: whether each job of a plain function runs in a process, which its time limit kills.
        memory_limit: bytes that a run of an isolated handler may take, also as text such as 500M; None for no limit.

    Raises:
        InvalidSettings: a value is outside its range; the message names the option, its value and its range.
    """

    slots: Annotated[int, Range(int, 0, 100_000)] = 10
    max_attempts: Annotated[int | None, Range(int, 1, 65_535, optional=True)] = 10
    timeout: Annotated[float, Bounds(above=True)] = 60.0
    health_threshold: Annotated[float, Bounds()] = HEALTH_THRESHOLD
    backoff: Annotated[float, Bounds(0, _DAY)] = 30.0
    jitter: Annotated[float, Range(float, 0, 1)] = JITTER
    max_history: Annotated[int, Range(int, 1, 100)] = 20
    continuous: Continuous = False
    fifo: bool = False
    interval: Annotated[float, Bounds(0, _DAY, above=True)] = 60.0
    max_churn: Annotated[int, Range(int, 0, 100_000)] = 20
    grace: Annotated[float, Bounds(0, _DAY)] = 10.0
    time_limit: Annotated[float | None, Bounds(above=True, optional=True)] = None
    keep: Annotated[float | None, Bounds(optional=True)] = KEEP
    keep_failed: Annotated[float | None, Bounds(optional=True)] = None
    redact: Iterable[str] | None = None
    isolated: bool = False
    memory_limit: Annotated[int | None, Range(int, 1_000_000, 1 << 50, optional=True, is_size=True)] = None

    def __post_init__(self) -> None:
        _check_continuous(self.continuous)
        _check_bool("fifo", self.fifo)
        _check_bool("isolated", self.isolated)
        if self.redact is not None:
            object.__setattr__(self, "redact", Redaction(self.redact).paths)
        for name, allowed in _RANGES.items():
            value = getattr(self, name)
            checked = (
                check_duration(f"option {name}", value, allowed, InvalidSettings)
                if isinstance(allowed, Bounds)
                else allowed.checked(name, value)
            )
            object.__setattr__(self, name, checked)

    @property
    def redaction(self) -> Redaction | None:
        """The `redact` paths as a Redaction; None if unset."""
        return None if self.redact is None else Redaction(self.redact)

    def with_changes(self, **changes: Unpack[ChangeableOptions]) -> HandlerOptions:
        """Return the options with changed slots, max_churn, interval or max_history.

        Raises:
            InvalidSettings: another option, or a value outside its range.
        """
        for name, value in changes.items():
            if name not in ChangeableOptions.__annotations__:
                refused = f"option {in_one_line(str(name), 40)}={shown(value)}: it cannot change while the handler runs"
                raise InvalidSettings(f"{refused}; only {', '.join(ChangeableOptions.__annotations__)} can")
        return replace(self, **cast(dict[str, Any], changes))


_RANGES: Final[dict[str, Range | Bounds]] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(HandlerOptions, include_extras=True).items()
    if get_origin(hint) is Annotated
}


def handler_options(given: Mapping[str, Any], **defaults: Any) -> HandlerOptions:
    """Return the options of a handler.

    Args:
        given: the options of its registration.
        defaults: defaults of its kind, instead of those of HandlerOptions.

    Raises:
        InvalidSettings: there is no such option, or a value is outside its range.
    """
    for name, value in given.items():
        if name not in HandlerKeywords.__annotations__:
            known = HandlerKeywords.__annotations__
            raise InvalidSettings(f"there is no option {in_one_line(name, 40)}={shown(value)}{meant(name, known)}")
    return HandlerOptions(**{**defaults, **given})


def _check_continuous(value: Any) -> None:
    if inspect.iscoroutinefunction(value):
        raise InvalidSettings(
            f"option continuous={shown(value)}: it is asked as a job is accepted, and cannot be async"
        )
    if not isinstance(value, bool) and (not callable(value) or inspect.isclass(value)):
        raise InvalidSettings(
            f"option continuous={shown(value)}: {a_kind_of(value)}; allowed are True, False and a function of the job"
        )


def _check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidSettings(f"option {name}={shown(value)}: {a_kind_of(value)}; allowed are True and False")
