"""Checks of callers' arguments: numbers, times, rules and words. The message of each refusal names the allowed values.

Objects of subclasses, such as members of an IntEnum, are converted to their plain values. Types, ids and priorities are
checked where they are encoded (`layer/keyspace.py`), and so is data (`json_data.py`).
"""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias, TypeVar

from jobs_service import json_data
from jobs_service.durations import Bounds
from jobs_service.errors import InvalidJob, JobsError, JobTooLarge, a_kind_of, kind_of, shown
from jobs_service.model import UNSET, Job, JobError, JobId, JobState, JobType, NewJob, Outcome, RunAt, RunningJob
from jobs_service.model.job import Status, status_of

Word = TypeVar("Word", bound=enum.StrEnum)

IfExists: TypeAlias = Literal["error", "resubmit", "ignore"]
EnqueueRule: TypeAlias = IfExists | Literal["unique"]
"""Rules of `enqueue` for a job that exists already."""
IF_EXISTS: tuple[IfExists, ...] = ("error", "resubmit", "ignore")
"""Rules of `add` for a job that exists already."""
_IF_EXISTS: dict[str, IfExists] = {rule: rule for rule in IF_EXISTS}

Spread: TypeAlias = int | Literal["adaptive"]
"""Number of jobs at the front of a queue from which a worker picks its start at random; see JobsService.accept."""

ADAPTIVE: Final = 0
"""The number for "adaptive": the spread follows how often workers have collided recently."""

EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC).timestamp()
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC).timestamp()
"""Seconds since the epoch between which a datetime can hold a time in every time zone."""

MOST_AT_ONCE: Final = 1000
"""Most jobs that one HTTP request takes, lists or summarizes."""

_WIDEST_SPREAD: Final = 1_000_000
_LONGEST_NAME: Final = 100
_ACTIVITY_TIMEOUTS: Final = Bounds(0, sys.float_info.max, above=True)
_WAITS: Final = Bounds(0, math.inf, optional=True)
_KEPT: Final = Bounds(optional=True)
_UP_TO_LONGEST: Final = Bounds()


# Numbers and times


def exact_int(value: Any) -> int | None:
    """Return an int as a plain one, None for anything else; a bool is no int here."""
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def exact_number(value: Any) -> float | None:
    """Return a number as a float, None for anything else.

    Raises:
        OverflowError: no float can hold it.
    """
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def check_positive(what: str, value: Any) -> int:
    """Return an integer from 1 up.

    Raises:
        InvalidJob: it is something else.
    """
    number = exact_int(value)
    if number is None or number < 1:
        raise InvalidJob(f"{what}={shown(value)}: allowed are integers from 1 up")
    return number


def to_seconds(time: RunAt | None, what: str = "run_at") -> float | None:
    """Return a time as seconds since the epoch, checked.

    Raises:
        InvalidJob: a naive datetime, something that is no time, or a time no datetime can hold.
    """
    if time is None:
        return None
    if isinstance(time, datetime):
        seconds = _timestamp(time, what)
    else:
        try:
            number = exact_number(time)
        except OverflowError:
            number = math.inf
        if number is None:
            raise InvalidJob(
                f"{what} {shown(time)}: {a_kind_of(time)}; allowed are aware datetimes and seconds since the epoch"
            )
        seconds = number
    if not EARLIEST <= seconds <= LATEST:
        raise InvalidJob(f"{what} {shown(time)}: allowed are times of the years 1 to 9999")
    return seconds


def _timestamp(time: datetime, what: str) -> float:
    try:
        if time.utcoffset() is not None:
            return time.timestamp()
        text = time.isoformat()
    except Exception as error:  # whatever the time zone's own code raises
        raise InvalidJob(f"{what} {shown(time)}: its time zone fails with {kind_of(error)}") from None
    raise InvalidJob(f"{what} {text}: a naive datetime; give it a time zone")


def check_duration(
    what: str, value: Any, bounds: Bounds = _UP_TO_LONGEST, refused: Callable[[str], Exception] = InvalidJob
) -> float | None:
    """Return a duration in seconds; None if it is None and that is allowed.

    Args:
        what: the argument's name, for the message.
        value: seconds, a timedelta or a text.
        bounds: the allowed durations.
        refused: makes the error.

    Raises:
        InvalidJob: the value is no duration, or is not allowed; with `refused`, the error that it makes.
    """
    if value is None and bounds.optional:
        return None
    seconds = bounds.seconds(value)
    if seconds is None:
        raise refused(f"{what}={shown(value)}: allowed are {bounds}")
    return seconds


def check_seconds(seconds: Any) -> float:
    """Return an activity timeout in seconds. Raises like `check_duration`."""
    checked = check_duration("activity timeout", seconds, _ACTIVITY_TIMEOUTS)
    assert checked is not None
    return checked


def check_timeout(timeout: Any) -> float | None:
    """Return a wait in seconds, None for ever.

    Raises:
        JobsError: neither None nor a duration.
    """
    seconds = check_duration("timeout", timeout, _WAITS, JobsError)
    return None if seconds == math.inf else seconds


def check_keep(what: str, seconds: Any) -> float | None:
    """Return the seconds for which finished jobs are kept; None for ever. Raises like `check_duration`."""
    return check_duration(what, seconds, _KEPT)


# Rules and words


def check_force(force: Any) -> bool:
    """Return whether to remove a job by force: True or False."""
    if force is not True and force is not False:
        raise InvalidJob(f"force={shown(force)}: allowed are True and False")
    return force


def check_if_exists(if_exists: Any) -> IfExists:
    """Return the rule for a job that exists already."""
    rule = _IF_EXISTS.get(if_exists) if isinstance(if_exists, str) else None
    if rule is None:
        raise InvalidJob(f"if_exists={shown(if_exists)}: allowed are {', '.join(map(repr, IF_EXISTS))}")
    return rule


def check_spread(spread: Any) -> int:
    """Return a spread in the form of AcceptTerms."""
    if isinstance(spread, str) and spread == "adaptive":
        return ADAPTIVE
    number = exact_int(spread)
    if number is None or number < 1:
        raise InvalidJob(f"spread={shown(spread)}: allowed are integers from 1 up and 'adaptive'")
    return min(number, _WIDEST_SPREAD)


def check_limit(limit: Any) -> int | None:
    """Return the limit of a count: None for none, or an integer from 0 up."""
    if limit is None:
        return None
    number = exact_int(limit)
    if number is None or number < 0:
        raise InvalidJob(f"limit={shown(limit)}: allowed are None and integers from 0 up")
    return number


def check_error(error: Any, job: Job) -> None:
    """Refuse a run's error unless it is a JobError of texts."""
    if not isinstance(error, JobError):
        refused = f"error {shown(error)}: {a_kind_of(error)}; allowed are JobError and None"
        raise InvalidJob(refused).about(job.type, job.id)
    for name in ("type", "message", "traceback"):
        text = getattr(error, name)
        if not isinstance(text, str):
            refused = f"error: {name}={shown(text)}: {a_kind_of(text)}; allowed is str"
            raise InvalidJob(refused).about(job.type, job.id)


def check_outcome(outcome: Any, job: Job) -> Outcome:
    """Return the outcome as a member of its enumeration."""
    found = member(Outcome, outcome)
    if found is None:
        allowed = ", ".join(repr(str(each)) for each in Outcome)
        raise InvalidJob(f"outcome {shown(outcome)}: allowed are {allowed}").about(job.type, job.id)
    return found


def check_state(state: Any, now: float) -> Callable[[Job], bool] | None:
    """Return a test whether a job is in the given state, None for all jobs; `now` in seconds since the epoch."""
    if state is None:
        return None
    coarse, exact = member(JobState, state), member(Status, state)
    if coarse is not None and coarse is not JobState.REMOVED:
        return lambda job: job.state is coarse
    if exact is None:
        allowed = ", ".join(repr(str(each)) for each in dict.fromkeys([*JobState, *Status]) if each != "removed")
        raise InvalidJob(f"state {shown(state)}: allowed are {allowed}")
    return lambda job: status_of(job, now) is exact


def member(words: type[Word], value: Any) -> Word | None:
    """Return the enumeration member that a str names, None if there is none."""
    return next((each for each in words if each == value), None) if isinstance(value, str) else None


# Jobs


def json_of(type: JobType, id: JobId, data: Any) -> bytes | None:
    """Return a job's data or result as JSON, None for UNSET.

    Raises:
        InvalidJob, JobTooLarge: JSON cannot carry it; the error names the job.
    """
    if data is UNSET:
        return None
    try:
        return json_data.encode(data)
    except (InvalidJob, JobTooLarge) as error:
        raise error.about(type, id) from None


def check_schedule_name(name: Any) -> str:
    """Return the name of a schedule, checked; raises InvalidJob."""
    if not isinstance(name, str):
        raise InvalidJob(f"name {shown(name)}: {a_kind_of(name)}; a schedule's name is a str")
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise InvalidJob(f"name {shown(name)}: allowed are 1 to {_LONGEST_NAME} printable characters")
    return str(name)


def check_running(job: Any) -> None:
    """Refuse anything but a running job."""
    if not isinstance(job, RunningJob):
        raise InvalidJob(f"{shown(job)}: {a_kind_of(job)}; it must be a RunningJob, as accept returns them")


def check_iterable(what: str, values: Any) -> Iterator[Any]:
    """Return an iterator over values; a text is refused, as a single value that was not put into a list."""
    try:
        if isinstance(values, str | bytes | bytearray):
            raise TypeError
        return iter(values)
    except Exception:  # a TypeError, or an exception of an object's own __iter__
        raise InvalidJob(
            f"{what} {shown(values)}: {a_kind_of(values)}; allowed is any iterable that is no text"
        ) from None


def new_jobs(jobs: Any) -> Iterator[NewJob]:
    """Return an iterator over the jobs passed to add_many."""
    try:
        return iter(jobs)
    except TypeError:
        refused = f"jobs {shown(jobs)}: {a_kind_of(jobs)}; add_many takes NewJob objects, in any iterable"
        raise InvalidJob(refused) from None
