"""The arguments of `enqueue`: checked and encoded before any transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import (
    Any,
    Final,
    NamedTuple,
)

from jobs_service import run_data
from jobs_service.arguments import EnqueueRule, check_duration, exact_int
from jobs_service.durations import Bounds
from jobs_service.errors import InvalidJob, a_kind_of, shown
from jobs_service.layer.creation import Spec, spec_of
from jobs_service.layer.key_parts import pack_type, unpacked_type
from jobs_service.model import UNSET, JobId
from jobs_service.model.enqueueing import ENQUEUE_OPTIONS as ENQUEUE_OPTIONS
from jobs_service.model.enqueueing import UNIQUE, delay_of, is_unique, one_value, rule_of, unique_key
from jobs_service.model.enqueueing import ArgsT as ArgsT
from jobs_service.model.enqueueing import Enqueueable as Enqueueable
from jobs_service.model.enqueueing import How as How
from jobs_service.model.enqueueing import ResultT as ResultT
from jobs_service.model.enqueueing import ResultT_co as ResultT_co
from jobs_service.redaction import Redaction
from jobs_service.sources import Sources

_RANDOM_ID_BYTES: Final = 16
_TIME_LIMITS: Final = Bounds(above=True, optional=True)
_MOST_ATTEMPTS: Final = 65_535


class Named(Enqueueable[Any, Any]):
    """A handler that is named by its type; if this program does not have it, only the type is known.

    Args:
        type: as a program gave it.
        handlers: the known handlers, by packed type.
        redaction: declared by a handler elsewhere; None for the known handler's.
    """

    takes_keywords = True

    def __init__(
        self, type: Any, handlers: Mapping[bytes, Enqueueable[Any, Any]], redaction: Redaction | None = None
    ) -> None:
        packed = pack_type(type)
        self.type = unpacked_type(packed)
        self.name = f"type {shown(self.type)}"
        self._handler = handlers.get(packed)
        self.like_options = () if self._handler is None else self._handler.like_options
        self._redaction = redaction

    @property
    def timeout(self) -> float | None:
        """The handler's timeout, None if the handler is unknown."""
        return None if self._handler is None else self._handler.timeout

    @property
    def redaction(self) -> Redaction | None:
        """The handler's secret fields, None if the handler is unknown."""
        if self._redaction is not None:
            return self._redaction
        return None if self._handler is None else self._handler.redaction

    def data(self, args: Any) -> Any:
        """Return the data of a job, checked by the handler if it is known."""
        if args is UNSET:
            return None if self._handler is None else self._handler.data(UNSET)
        return args if self._handler is None else self._handler.checked(args)

    def whole(self, data: Any) -> Any:
        """Return a job's data, completed with defaults if the handler is known."""
        return data if self._handler is None else self._handler.whole(data)


class Wanted(NamedTuple):
    """One job to enqueue.

    Attributes:
        id: its name within the type.
        spec: its data and options.
        rule: for an existing job with this id.
    """

    id: JobId
    spec: Spec
    rule: EnqueueRule


def handler_of(handler: Any, known: Mapping[bytes, Enqueueable[Any, Any]]) -> Enqueueable[Any, Any]:
    """Return the handler to enqueue a job for.

    Args:
        handler: a handler, or the type of one.
        known: the handlers of this program, by packed type.

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
        handler: the handler that will run it.
        args: its arguments as one value; UNSET for none.
        arguments: its arguments by keyword.
        how: the options.
        sources: wall-clock time and randomness.

    Raises:
        InvalidJob: arguments that are not the handler's, or options that exclude each other.
        JobTooLarge: more than any store takes.
    """
    data = handler.data(one_value(handler, args, arguments))
    run_at = due(how.run_at, how.delay, sources)
    id = _naming(handler, data, how, sources)
    spec = spec_of(handler.type, id, data, how.priority, run_at)
    spec.limits = limits_of(how.max_attempts, how.time_limit)
    spec.redaction = handler.redaction
    if how.unique_for is not None:
        spec.unique_for = check_duration("unique_for", how.unique_for) or 0.0
    return Wanted(id, spec, rule_of(handler, how))


def due(run_at: Any, delay: Any, sources: Sources) -> Any:
    """Return when a job is to run, given a time or a delay. Raises like `delay_of`."""
    seconds = delay_of(run_at, delay)
    return run_at if seconds is None else sources.wall_time() + seconds


def limits_of(max_attempts: Any, time_limit: Any) -> bytes | None:
    """Return a job's own limits, which replace its handler's, in the form of run data; None if it has none.

    Raises:
        InvalidJob: a number out of range.
    """
    if max_attempts is None and time_limit is None:
        return None
    most = None if max_attempts is None else exact_int(max_attempts)
    if max_attempts is not None and (most is None or not 1 <= most <= _MOST_ATTEMPTS):
        raise InvalidJob(
            f"max_attempts={shown(max_attempts)}: allowed are None and integers from 1 to {_MOST_ATTEMPTS}"
        )
    return run_data.limits_json(most, check_duration("time_limit", time_limit, _TIME_LIMITS))


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
    return UNIQUE + unique_key(handler, data, how.unique)
