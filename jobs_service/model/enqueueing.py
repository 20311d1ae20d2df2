"""The arguments of `enqueue` (a handler, its arguments, and options) before anything is encoded for a store.

Also the signatures of `enqueue` and `enqueue_many` for type checkers: each handler with its arguments.
"""

from __future__ import annotations

import abc
import difflib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from hashlib import blake2b
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NamedTuple,
    Never,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from jobs_service import json_data
from jobs_service.arguments import EnqueueRule, IfExists, check_duration, check_if_exists
from jobs_service.durations import Duration
from jobs_service.errors import InvalidJob, in_one_line, shown
from jobs_service.model import UNSET, Job, JobId, JobType, Priority, RunAt

if TYPE_CHECKING:
    from jobs_service.redaction import Redaction

ArgsT = TypeVar("ArgsT")
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)
AnswerT_co = TypeVar("AnswerT_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")

When: TypeAlias = RunAt | timedelta
"""An aware datetime, seconds since the epoch, or a timedelta from now on."""

Given: TypeAlias = ArgsT | Callable[[ArgsT, Never], Never]
"""Arguments with the type that the handler declares, so that `[1]` is a list[int | str] for such a handler.

The second member matches no real value: mypy checks arguments for a callable type last, and by then it knows the
handler. Otherwise it takes `[1]` for a list[int] and cannot infer ArgsT.
"""

UNIQUE: Final = "unique:"
"""Prefix of ids made by `unique`."""

_DIGEST_BYTES: Final = 16


# Arguments


class Enqueueable(abc.ABC, Generic[ArgsT, ResultT_co]):
    """A handler, as far as `enqueue` needs to know it.

    Attributes:
        type: of its jobs.
        name: its name for messages.
        takes_args: whether its function takes anything but the job.
        takes_keywords: whether its arguments can be given by keyword.
        like_options: its parameters that have the names of options of `enqueue`: then arguments are given as one value.
    """

    type: JobType
    name: str
    takes_args: bool = True
    takes_keywords: bool = False
    like_options: tuple[str, ...] = ()

    @property
    @abc.abstractmethod
    def timeout(self) -> float | None:
        """The activity timeout for making the type, in seconds; None for a type that must exist."""

    @abc.abstractmethod
    def data(self, args: Any) -> Any:
        """Return arguments as JSON data; UNSET for a handler that takes none."""

    @property
    def redaction(self) -> Redaction | None:
        """The secret fields of its jobs; None if it declares none."""
        return None

    def checked(self, data: Any) -> Any:
        """Return JSON data after checking that the handler can take it."""
        return data

    def whole(self, data: Any) -> Any:
        """Return a job's data, completed with the known defaults of missing arguments."""
        return data

    def result(self, data: Any) -> Any:
        """Return the handler's result from its JSON data."""
        return data


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
"""Keywords of `enqueue` itself: a handler's parameter with one of these names cannot be given by keyword."""


def delay_of(run_at: Any, delay: Any) -> float | None:
    """Return a job's delay in seconds; None if `run_at` is a time, or None.

    Raises:
        InvalidJob: both are given, or the delay is invalid.
    """
    if delay is None and not isinstance(run_at, timedelta):
        return None
    if delay is not None and run_at is not None:
        raise InvalidJob(f"run_at={shown(run_at)} and delay={shown(delay)}: give one of them")
    what, value = ("run_at", run_at) if delay is None else ("delay", delay)
    return check_duration(what, value)


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


def one_value(handler: Enqueueable[Any, Any], args: Any, arguments: Mapping[str, Any]) -> Any:
    """Return arguments as one value, in whatever form they were given.

    Raises:
        InvalidJob: they were given twice, or by keyword to a handler that takes one value, or a keyword may mean either
            a parameter or an option.
    """
    if not arguments:
        return args
    if handler.like_options and args is UNSET:
        name = in_one_line(handler.like_options[0], 40)
        refused = f"{handler.name} has a parameter {name}, and enqueue has an option {name}: give its arguments as one "
        raise InvalidJob(refused + f'value, enqueue(handler, {{"{name}": ...}})').about(handler.type)
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


def rule_of(handler: Enqueueable[Any, Any], how: How) -> EnqueueRule:
    """Return the rule for a job that exists already.

    Raises:
        InvalidJob: options that exclude each other.
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


def unique_key(handler: Enqueueable[Any, Any], data: Any, unique: Any) -> str:
    """Return the key by which a job is unique: the given one, or a hash of its arguments."""
    if unique is True:
        return blake2b(json_data.canonical(handler.whole(data)), digest_size=_DIGEST_BYTES).hexdigest()
    return "".join(("", unique))  # the plain text of a member of an enumeration as well


# Signatures for type checkers


class TypedEnqueued(Enqueueable[ArgsT, ResultT_co], Generic[P, ArgsT, ResultT_co]):
    """A handler whose parameters, except the job, are known to a type checker."""


NeedsNoValue: TypeAlias = TypedEnqueued[[], Any, Any] | TypedEnqueued[..., Mapping[str, Any], Any]
"""A handler whose arguments can all be left out, or are given by keyword."""


class TheseArguments:
    """Stands for arguments that do not match a handler. A type checker accepts it for a handler of Any, about which it
    knows nothing, and names it in errors about arguments that a handler's function does not take.
    """


class SharedOptions(TypedDict, total=False):
    """The options that `enqueue` and `enqueue_many` have in common; see JobsService.enqueue."""

    priority: Priority
    run_at: When | None
    delay: Duration | None
    max_attempts: int | None
    time_limit: Duration | None
    unique_for: Duration | None


class EnqueueOptions(SharedOptions, total=False):
    """The options of `enqueue`."""

    id: JobId | None
    unique: str | bool | None
    if_exists: IfExists | None


class EnqueueManyOptions(SharedOptions, total=False):
    """The options of `enqueue_many`."""

    unique: bool


class Enqueue(Protocol[AnswerT_co]):
    """`enqueue` for a type checker; see JobsService.enqueue.

    Names and types of keyword arguments are checked against the handler only in calls without options: typing cannot
    yet express a function with another function's parameters plus its own, so `enqueue` checks them at run time
    otherwise.
    """

    @overload
    def __call__(
        self, handler: Enqueueable[ArgsT, Any], args: Given[ArgsT], **options: Unpack[EnqueueOptions]
    ) -> AnswerT_co: ...
    @overload
    def __call__(self, handler: TypedEnqueued[P, Any, Any], *args: P.args, **arguments: P.kwargs) -> AnswerT_co: ...
    @overload
    def __call__(self, handler: NeedsNoValue, *, id: JobId | None, **arguments: Any) -> AnswerT_co: ...
    @overload
    def __call__(self, handler: NeedsNoValue, *, priority: Priority, **arguments: Any) -> AnswerT_co: ...
    @overload
    def __call__(self, handler: NeedsNoValue, *, run_at: When | None, **arguments: Any) -> AnswerT_co: ...
    @overload
    def __call__(self, handler: NeedsNoValue, *, delay: Duration | None, **arguments: Any) -> AnswerT_co: ...
    @overload
    def __call__(self, handler: NeedsNoValue, *, unique: str | bool | None, **arguments: Any) -> AnswerT_co: ...
    @overload
    def __call__(self, handler: NeedsNoValue, *, unique_for: Duration | None, **arguments: Any) -> AnswerT_co: ...
    @overload
    def __call__(self, handler: NeedsNoValue, *, if_exists: IfExists | None, **arguments: Any) -> AnswerT_co: ...
    @overload
    def __call__(self, handler: NeedsNoValue, *, max_attempts: int | None, **arguments: Any) -> AnswerT_co: ...
    @overload
    def __call__(self, handler: NeedsNoValue, *, time_limit: Duration | None, **arguments: Any) -> AnswerT_co: ...
    @overload
    def __call__(self, handler: Enqueueable[TheseArguments, Any], *args: Any, **arguments: Any) -> AnswerT_co: ...
    @overload
    def __call__(
        self,
        handler: JobType,
        args: Any = UNSET,
        *,
        id: JobId | None = None,
        priority: Priority = 0,
        run_at: When | None = None,
        delay: Duration | None = None,
        unique: str | bool | None = None,
        max_attempts: int | None = None,
        time_limit: Duration | None = None,
        if_exists: IfExists | None = None,
        unique_for: Duration | None = None,
        **arguments: Any,
    ) -> AnswerT_co: ...


class EnqueueMany(Protocol[AnswerT_co]):
    """`enqueue_many` for a type checker; see JobsService.enqueue_many."""

    @overload
    def __call__(
        self, handler: Enqueueable[ArgsT, Any], jobs: Iterable[Given[ArgsT]], **options: Unpack[EnqueueManyOptions]
    ) -> AnswerT_co: ...
    @overload
    def __call__(
        self,
        handler: JobType | Enqueueable[TheseArguments, Any],
        jobs: Iterable[Any],
        **options: Unpack[EnqueueManyOptions],
    ) -> AnswerT_co: ...


def as_enqueue(
    method: Callable[[Any, Any, Any, dict[str, Any], How], Coroutine[Any, Any, Job]],
) -> Enqueue[Coroutine[Any, Any, Job]]:
    """Return a method as `enqueue`, with its overloads for a type checker.

    Args:
        method: of an object; takes a handler, its arguments as one value, those by keyword, and the options.
    """

    async def enqueue(
        self: Any,
        handler: Any,
        args: Any = UNSET,
        *,
        id: JobId | None = None,
        priority: Priority = 0,
        run_at: When | None = None,
        delay: Duration | None = None,
        unique: str | bool | None = None,
        max_attempts: int | None = None,
        time_limit: Duration | None = None,
        if_exists: IfExists | None = None,
        unique_for: Duration | None = None,
        **arguments: Any,
    ) -> Job:
        how = How(id, priority, run_at, delay, unique, max_attempts, time_limit, if_exists, unique_for)
        return await method(self, handler, args, arguments, how)

    return cast(Enqueue[Coroutine[Any, Any, Job]], _called_like(enqueue, method))


def as_enqueue_many(
    method: Callable[[Any, Any, Iterable[Any], How], Coroutine[Any, Any, list[Job]]],
) -> EnqueueMany[Coroutine[Any, Any, list[Job]]]:
    """Return a method as `enqueue_many`, with its overloads for a type checker.

    Args:
        method: of an object; takes a handler, the arguments of each job, and the options of all.
    """

    async def enqueue_many(
        self: Any,
        handler: Any,
        jobs: Iterable[Any],
        *,
        priority: Priority = 0,
        run_at: When | None = None,
        delay: Duration | None = None,
        unique: bool = False,
        max_attempts: int | None = None,
        time_limit: Duration | None = None,
        unique_for: Duration | None = None,
    ) -> list[Job]:
        if unique is not True and unique is not False:  # with a key of theirs all would be one job
            raise InvalidJob(f"unique={shown(unique)}: allowed are True and False where many jobs are enqueued")
        how = How(None, priority, run_at, delay, unique, max_attempts, time_limit, None, unique_for)
        return await method(self, handler, jobs, how)

    return cast(EnqueueMany[Coroutine[Any, Any, list[Job]]], _called_like(enqueue_many, method))


def _called_like(function: Callable[P, T], method: Callable[..., object]) -> Callable[P, T]:
    """Return a function with the name and the docstring of a method; its signature is its own."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(function, name, getattr(method, name))
    return function
