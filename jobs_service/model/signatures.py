"""The signatures of `enqueue` and `enqueue_many` for type checkers: each handler with its arguments."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Generic, Never, ParamSpec, Protocol, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload

from jobs_service.arguments import IfExists
from jobs_service.durations import Duration
from jobs_service.errors import InvalidJob, shown
from jobs_service.model import UNSET, Job, JobId, JobType, Priority
from jobs_service.model.enqueueing import ArgsT, Enqueueable, How, ResultT_co, When

AnswerT_co = TypeVar("AnswerT_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class TypedEnqueued(Enqueueable[ArgsT, ResultT_co], Generic[P, ArgsT, ResultT_co]):
    """A handler whose parameters, except the job, are known to a type checker."""


NeedsNoValue: TypeAlias = TypedEnqueued[[], Any, Any] | TypedEnqueued[..., Mapping[str, Any], Any]
"""A handler whose arguments can all be left out, or are given by keyword."""


class TheseArguments:
    """Stands for arguments that do not match a handler. A type checker accepts it for a handler of Any, about which it
    knows nothing, and names it in errors about arguments that a handler's function does not take.
    """


Given: TypeAlias = ArgsT | Callable[[ArgsT, Never], Never]
"""Arguments with the type that the handler declares, so that `[1]` is a list[int | str] for such a handler.

The second member matches no real value: mypy checks arguments for a callable type last, and by then it knows the
handler. Otherwise it takes `[1]` for a list[int] and cannot infer ArgsT.
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
