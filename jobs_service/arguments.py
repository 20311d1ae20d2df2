"""Checks of callers' arguments: numbers, times, rules and words. The message of each refusal says what is allowed.

Objects of subclasses, such as members of an IntEnum, are taken as the plain values that they are. Types, ids and
priorities are checked where they are encoded (`layer/key_parts.py`), and so is data (`json_data.py`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias, TypeVar

from jobs_service.errors import InvalidJob, JobsError, a_kind_of, kind_of, shown
from jobs_service.model import Job, JobState, NewJob, Outcome, RunAt, RunningJob
from jobs_service.status import Status, status_of

Word = TypeVar("Word", bound=enum.StrEnum)

IfExists: TypeAlias = Literal["error", "resubmit", "ignore"]
EnqueueRule: TypeAlias = IfExists | Literal["unique"]
"""What `enqueue` does with a job that is there."""
IF_EXISTS: tuple[IfExists, ...] = ("error", "resubmit", "ignore")
"""What `add` does when the job exists already."""

Spread: TypeAlias = int | Literal["adaptive"]
"""Among how many jobs at the front of a queue a worker begins to take them at random; see JobsService.accept."""

ADAPTIVE: Final = 0
"""What "adaptive" is as a number: the spread follows how often workers have collided of late."""

EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC).timestamp()
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC).timestamp()
"""Seconds since the epoch between which a datetime can hold a time in every time zone."""

_WIDEST_SPREAD: Final = 1_000_000
_LONGEST_KEEP: Final = 1e9
"""Seconds."""


# Numbers and times


def exact_int(value: Any) -> int | None:
    """Return an int as a plain one, None for anything else; a bool is no int here."""
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def exact_seconds(seconds: Any) -> float | None:
    """Return a number of seconds as a float, None for anything but a number.

    Raises:
        OverflowError: no float can hold it.
    """
    return float(seconds) if isinstance(seconds, int | float) and not isinstance(seconds, bool) else None


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
            number = exact_seconds(time)
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


def check_seconds(seconds: Any) -> float:
    """Return an activity timeout in seconds.

    Raises:
        InvalidJob: it is no positive, finite number of seconds.
    """
    try:
        checked = exact_seconds(seconds)
    except OverflowError:
        if seconds > 0:
            raise InvalidJob("activity timeout: more seconds than a float can hold") from None
        checked = None
    if checked is None or not 0 < checked < math.inf:
        raise InvalidJob(f"activity timeout {shown(seconds)}: allowed are positive, finite numbers of seconds")
    return checked


def check_timeout(timeout: Any) -> float | None:
    """Return a wait in seconds, None for ever.

    Raises:
        JobsError: neither None nor a number of seconds from 0 up.
    """
    if timeout is None:
        return None
    try:
        seconds = exact_seconds(timeout)
    except OverflowError:  # an integer beyond every float: for ever, or below zero
        seconds = math.inf if timeout > 0 else None
    if seconds is None or not seconds >= 0:
        raise JobsError(f"timeout={shown(timeout)}: allowed are None and numbers of seconds from 0 up")
    return None if seconds == math.inf else seconds


def check_keep(what: str, seconds: Any) -> float | None:
    """Return how long finished jobs are kept, in seconds; None for ever.

    Raises:
        InvalidJob: it is no number of seconds from 0 up.
    """
    if seconds is None:
        return None
    try:
        checked = exact_seconds(seconds)
    except OverflowError:
        checked = None
    if checked is None or not 0 <= checked <= _LONGEST_KEEP:
        raise InvalidJob(f"{what}={shown(seconds)}: allowed are None and seconds from 0 to {_LONGEST_KEEP:.0f}")
    return checked


# Rules and words


def check_force(force: Any) -> bool:
    """Return whether to remove a job by force: True or False."""
    if force is not True and force is not False:
        raise InvalidJob(f"force={shown(force)}: allowed are True and False")
    return force


def check_if_exists(if_exists: Any) -> IfExists:
    """Return the rule for a job that exists already."""
    for rule in IF_EXISTS:
        if isinstance(if_exists, str) and rule == if_exists:
            return rule
    raise InvalidJob(f"if_exists={shown(if_exists)}: allowed are {', '.join(map(repr, IF_EXISTS))}")


def check_spread(spread: Any) -> int:
    """Return a spread as AcceptTerms have it."""
    if isinstance(spread, str) and spread == "adaptive":
        return ADAPTIVE
    number = exact_int(spread)
    if number is None or number < 1:
        raise InvalidJob(f"spread={shown(spread)}: allowed are integers from 1 up and 'adaptive'")
    return min(number, _WIDEST_SPREAD)


def check_page_size(page_size: Any) -> int:
    """Return the number of jobs of a page, from 1 up."""
    return check_positive("page_size", page_size)


def check_limit(limit: Any) -> int | None:
    """Return the limit of a count: None for none, or an integer from 0 up."""
    if limit is None:
        return None
    number = exact_int(limit)
    if number is None or number < 0:
        raise InvalidJob(f"limit={shown(limit)}: allowed are None and integers from 0 up")
    return number


def check_outcome(outcome: Any, job: Job) -> Outcome:
    """Return the outcome as a member of its enumeration."""
    if outcome is Outcome.SUCCEEDED:
        return Outcome.SUCCEEDED
    found = member(Outcome, outcome)
    if found is None:
        allowed = ", ".join(repr(str(each)) for each in Outcome)
        raise InvalidJob(f"outcome {shown(outcome)}: allowed are {allowed}").about(job.type, job.id)
    return found


def check_state(state: Any, now: float) -> Callable[[Job], bool] | None:
    """Return a test of whether a job is in the state to list, None for all jobs; `now` in seconds since the epoch."""
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
    """Return the member of an enumeration of words that a str names, None when there is none."""
    return next((each for each in words if each == value), None) if isinstance(value, str) else None


# Jobs


def check_running(job: Any) -> None:
    """Refuse anything but a running job."""
    if not isinstance(job, RunningJob):
        raise InvalidJob(f"{shown(job)}: {a_kind_of(job)}; it must be a RunningJob, as accept returns them")


def check_iterable(what: str, values: Any) -> Iterator[Any]:
    """Return an iterator over values; a text is refused, as it is one value that was not put into a list."""
    try:
        if isinstance(values, str | bytes | bytearray):
            raise TypeError
        return iter(values)
    except Exception:  # a TypeError, or what an object's own __iter__ raises
        raise InvalidJob(
            f"{what} {shown(values)}: {a_kind_of(values)}; allowed is any iterable that is no text"
        ) from None


def new_jobs(jobs: Any) -> Iterator[NewJob]:
    """Return an iterator over the jobs that add_many was given."""
    try:
        return iter(jobs)
    except TypeError:
        refused = f"jobs {shown(jobs)}: {a_kind_of(jobs)}; add_many takes NewJob objects, in any iterable"
        raise InvalidJob(refused) from None
