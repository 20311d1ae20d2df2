"""The arguments of `enqueue`: checked and encoded before any transaction."""

from __future__ import annotations

import abc
import difflib
import math
from collections.abc import Mapping
from datetime import timedelta
from hashlib import blake2b
from typing import (
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
)

from jobs_service import json_data, run_data
from jobs_service.arguments import EnqueueRule, check_if_exists, exact_int, exact_seconds
from jobs_service.errors import InvalidJob, a_kind_of, in_one_line, shown
from jobs_service.layer.creation import Spec, spec_of
from jobs_service.layer.key_parts import pack_type, unpacked_type
from jobs_service.model import UNSET, JobId, JobType, RunAt
from jobs_service.redaction import Redaction
from jobs_service.sources import Sources

ArgsT = TypeVar("ArgsT")
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)

When: TypeAlias = RunAt | timedelta
"""An aware datetime, seconds since the epoch, or a timedelta from now on."""

UNIQUE: Final = "unique:"
"""What ids begin with that `unique` gives."""

_RANDOM_ID_BYTES: Final = 16
_DIGEST_BYTES: Final = 16
_LONGEST: Final = 1e9
_MOST_ATTEMPTS: Final = 65_535


class Enqueueable(abc.ABC, Generic[ArgsT, ResultT_co]):
    """A handler, as far as `enqueue` needs to know it.

    Attributes:
        type: of its jobs.
        name: how messages call it.
        takes_args: whether its function takes anything but the job.
        takes_keywords: whether its arguments can be given by keyword.
    """

    type: JobType
    name: str
    takes_args: bool = True
    takes_keywords: bool = False

    @property
    @abc.abstractmethod
    def timeout(self) -> float | None:
        """The activity timeout that the type is made with, in seconds; None for a type that must be there."""

    @abc.abstractmethod
    def data(self, args: Any) -> Any:
        """Return arguments as JSON data; UNSET for a handler that takes none."""

    @property
    def redaction(self) -> Redaction | None:
        """Which fields of its jobs are secret; None where it does not say."""
        return None

    def checked(self, data: Any) -> Any:
        """Return JSON data, which the handler must be able to take."""
        return data

    def whole(self, data: Any) -> Any:
        """Return a job's data with the defaults of what was left out, as far as they are known."""
        return data


class Named(Enqueueable[Any, Any]):
    """A handler that is named by its type; if this program does not have it, only the type is known.

    Args:
        type: as a program gave it.
        handlers: those that are known, by type as packed.
    """

    takes_keywords = True

    def __init__(self, type: Any, handlers: Mapping[bytes, Enqueueable[Any, Any]]) -> None:
        packed = pack_type(type)
        self.type = unpacked_type(packed)
        self.name = f"type {shown(self.type)}"
        self._handler = handlers.get(packed)

    @property
    def timeout(self) -> float | None:
        """That of the handler, None when it is not known."""
        return None if self._handler is None else self._handler.timeout

    @property
    def redaction(self) -> Redaction | None:
        """That of the handler, None when it is not known."""
        return None if self._handler is None else self._handler.redaction

    def data(self, args: Any) -> Any:
        """Return the data of a job, checked by the handler if it is known."""
        if args is UNSET:
            return None if self._handler is None else self._handler.data(UNSET)
        return args if self._handler is None else self._handler.checked(args)

    def whole(self, data: Any) -> Any:
        """Return a job's data with the defaults of what was left out, if the handler is known."""
        return data if self._handler is None else self._handler.whole(data)


class How(NamedTuple):
    """The options of `enqueue`, as a program gave them; see JobsService.enqueue."""

    id: Any = None
    priority: Any = 0
    run_at: Any = None
    delay: Any = None
    unique: Any = None
    max_attempts: Any = None
    time_limit: Any = None
    if_exists: Any = None
    unique_for: Any = None


ENQUEUE_OPTIONS: Final = How._fields
"""Keywords of `enqueue` itself: no parameter of a handler that is given by keyword may have one of these names."""


class Wanted(NamedTuple):
    """One job that is to be enqueued.

    Attributes:
        id: its name within the type.
        spec: its data and options.
        rule: what is done with a job of this id that is there.
    """

    id: JobId
    spec: Spec
    rule: EnqueueRule


def handler_of(handler: Any, known: Mapping[bytes, Enqueueable[Any, Any]]) -> Enqueueable[Any, Any]:
    """Return the handler to enqueue a job for.

    Args:
        handler: a handler, or the type of one.
        known: the handlers of this program, by type as packed.

    Raises:
        InvalidJob: neither a handler nor a type.
    """
    if isinstance(handler, Enqueueable):
        return handler
    if isinstance(handler, str | bytes | int | tuple) and not isinstance(handler, bool):
        return Named(handler, known)
    raise InvalidJob(
        f"{shown(handler)}: {a_kind_of(handler)}; enqueue takes what @jobs.handler(type) made of a function, or a type"
    )


def wanted(
    handler: Enqueueable[Any, Any], args: Any, arguments: Mapping[str, Any], how: How, sources: Sources
) -> Wanted:
    """Return the job to enqueue.

    Args:
        handler: that will run it.
        args: its arguments as one value; UNSET for none.
        arguments: its arguments by keyword.
        how: the options.
        sources: wall-clock time and randomness.

    Raises:
        InvalidJob: arguments that are not the handler's, or options that do not go together.
        JobTooLarge: more than any store takes.
    """
    data = handler.data(_one_value(handler, args, arguments))
    run_at = due(how.run_at, how.delay, sources)
    id = _naming(handler, data, how, sources)
    spec = spec_of(handler.type, id, data, how.priority, run_at)
    spec.limits = limits_of(how.max_attempts, how.time_limit)
    spec.redaction = handler.redaction
    if how.unique_for is not None:
        spec.unique_for = _seconds("unique_for", how.unique_for)
    return Wanted(id, spec, _rule(handler, how))


def _rule(handler: Enqueueable[Any, Any], how: How) -> EnqueueRule:
    """Return what is to be done with a job that is there.

    Raises:
        InvalidJob: options that do not go together.
    """
    unique = is_unique(how.unique)
    if how.unique_for is not None and not unique:
        refused = f"unique_for={shown(how.unique_for)}: it goes with unique=True or a key"
        raise InvalidJob(refused).about(handler.type, how.id)
    if how.if_exists is None:
        return "unique" if unique else "error"
    if unique or how.id is None:
        refused = f"if_exists={shown(how.if_exists)}: it goes with id=" + (", and not with unique" if unique else "")
        raise InvalidJob(refused).about(handler.type, how.id)
    return check_if_exists(how.if_exists)


def due(run_at: Any, delay: Any, sources: Sources) -> Any:
    """Return when a job is to run, given a time or a delay.

    Raises:
        InvalidJob: both are given, or the delay is none.
    """
    if delay is None and not isinstance(run_at, timedelta):
        return run_at
    if delay is not None and run_at is not None:
        raise InvalidJob(f"run_at={shown(run_at)} and delay={shown(delay)}: give one of them")
    what, value = ("run_at", run_at) if delay is None else ("delay", delay)
    return sources.wall_time() + _seconds(what, value)


def _seconds(what: str, value: Any) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else _number(value)
    if seconds is None or not 0 <= seconds <= _LONGEST:
        raise InvalidJob(f"{what}={shown(value)}: allowed are seconds from 0 to {_LONGEST:.0f} and timedeltas of them")
    return seconds


def limits_of(max_attempts: Any, time_limit: Any) -> bytes | None:
    """Return a job's own limits, which replace its handler's, as its run data keep them; None if it has none.

    Raises:
        InvalidJob: a number that cannot be.
    """
    if max_attempts is None and time_limit is None:
        return None
    most = None if max_attempts is None else exact_int(max_attempts)
    if max_attempts is not None and (most is None or not 1 <= most <= _MOST_ATTEMPTS):
        raise InvalidJob(
            f"max_attempts={shown(max_attempts)}: allowed are None and integers from 1 to {_MOST_ATTEMPTS}"
        )
    seconds = None if time_limit is None else _number(time_limit)
    if time_limit is not None and (seconds is None or not 0 < seconds <= _LONGEST):
        raise InvalidJob(f"time_limit={shown(time_limit)}: allowed are None and seconds > 0 and <= {_LONGEST:.0f}")
    return run_data.limits_json(most, seconds)


def is_unique(unique: Any) -> bool:
    """Return whether a job is to be the only one of its kind.

    Raises:
        InvalidJob: it is neither None, a bool nor a key.
    """
    if unique is None or unique is False:
        return False
    if unique is not True and not (isinstance(unique, str) and unique):
        raise InvalidJob(
            f"unique={shown(unique)}: allowed are None, True, False and a key (a str of at least 1 character)"
        )
    return True


def _one_value(handler: Enqueueable[Any, Any], args: Any, arguments: Mapping[str, Any]) -> Any:
    """Return arguments as one value, however they were given.

    Raises:
        InvalidJob: they were given twice, or by keyword to a handler that takes one value.
    """
    if not arguments:
        return args
    if handler.takes_keywords and args is UNSET:
        return dict(arguments)
    first = next(iter(arguments))
    why = f"it takes {'one value, right after the handler' if handler.takes_args else 'no arguments'}"
    if handler.takes_keywords:
        why = "its arguments are given as one value already"
    close = difflib.get_close_matches(first, ENQUEUE_OPTIONS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"the options of enqueue are {', '.join(ENQUEUE_OPTIONS)}"
    refused = f"{handler.name} is not given {in_one_line(first, 40)}= by keyword: {why}; {hint}"
    raise InvalidJob(refused).about(handler.type)


def _naming(handler: Enqueueable[Any, Any], data: Any, how: How, sources: Sources) -> JobId:
    """Return the id of a job that is enqueued.

    Raises:
        InvalidJob: id and unique are both given.
    """
    if not is_unique(how.unique):
        named: JobId = sources.token(_RANDOM_ID_BYTES).hex() if how.id is None else how.id
        return named
    if how.id is not None:
        refused = f"id={shown(how.id)} and unique={shown(how.unique)}: give one of them"
        raise InvalidJob(refused).about(handler.type, how.id)
    if how.unique is True:
        return UNIQUE + blake2b(json_data.canonical(handler.whole(data)), digest_size=_DIGEST_BYTES).hexdigest()
    return "".join((UNIQUE, how.unique))  # the plain text of a member of an enumeration as well


def _number(value: Any) -> float | None:
    try:
        return exact_seconds(value)
    except OverflowError:
        return math.inf
