"""The types of `@jobs.handler(...)` for type checkers: the arguments and the result of a function's jobs."""

# The shapes of functions overlap: one with a default fits where a value is given, and where none is. The first shape
# that fits is meant. Those that mypy takes for unreachable are reached by functions with keyword-only parameters.
# mypy: disable-error-code="overload-overlap, overload-cannot-match"

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, Generic, Protocol, TypeVar, cast, overload

from jobs_service.errors import InvalidSettings, shown
from jobs_service.layer.enqueueing import ArgsT, ResultT, ResultT_co
from jobs_service.model import Job, JobType, RunningJob
from jobs_service.model.signatures import P, TypedEnqueued
from jobs_service.runner.blocking import BlockingJob
from jobs_service.runner.handler import Handler, type_of
from jobs_service.runner.options import HandlerOptions

JobT = TypeVar("JobT", BlockingJob, RunningJob, Job)
JobT_contra = TypeVar("JobT_contra", BlockingJob, RunningJob, Job, contravariant=True)
ArgsT_contra = TypeVar("ArgsT_contra", contravariant=True)


class TypedHandler(Handler[ArgsT, ResultT_co], TypedEnqueued[P, ArgsT, ResultT_co], Generic[P, ArgsT, ResultT_co]):
    """A Handler whose parameters are visible to a type checker."""


class _Optional(Protocol[ArgsT_contra, ResultT_co]):
    """A function with one optional parameter."""

    def __call__(self, args: ArgsT_contra = ..., /) -> ResultT_co: ...


class _OptionalWithJob(Protocol[JobT_contra, ArgsT_contra, ResultT_co]):
    """A function of the job and one optional parameter."""

    def __call__(self, job: JobT_contra, args: ArgsT_contra = ..., /) -> ResultT_co: ...


class _Several(Protocol[P, ResultT_co]):
    """A function of several parameters."""

    @overload
    def __call__(self, first: Any, second: Any, /) -> ResultT_co: ...
    @overload
    def __call__(self, *args: P.args, **arguments: P.kwargs) -> ResultT_co: ...


class _SeveralWithJob(Protocol[P, JobT_contra, ResultT_co]):
    """A function of the job and several parameters."""

    @overload
    def __call__(self, job: JobT_contra, first: Any, second: Any, /) -> ResultT_co: ...
    @overload
    def __call__(self, job: JobT_contra, /, *args: P.args, **arguments: P.kwargs) -> ResultT_co: ...


class Registration(Protocol):
    """The result of `jobs.handler(type, ...)`: called with a function, it returns a Handler with the function's types.

    A handler without arguments takes jobs with any data, and a handler with several parameters takes a mapping. The
    shapes with more parameters come first, because a function with defaults also fits smaller shapes.
    """

    @overload
    def __call__(
        self, function: _SeveralWithJob[P, RunningJob, Coroutine[Any, Any, ResultT]], /
    ) -> TypedHandler[P, Mapping[str, Any], ResultT]: ...
    @overload
    def __call__(
        self, function: _OptionalWithJob[RunningJob, ArgsT, Coroutine[Any, Any, ResultT]], /
    ) -> TypedHandler[[], ArgsT, ResultT]: ...
    @overload
    def __call__(
        self, function: Callable[[RunningJob, ArgsT], Coroutine[Any, Any, ResultT]], /
    ) -> TypedHandler[[ArgsT], ArgsT, ResultT]: ...
    @overload
    def __call__(
        self, function: Callable[[RunningJob], Coroutine[Any, Any, ResultT]], /
    ) -> TypedHandler[[], object, ResultT]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[RunningJob, P], Coroutine[Any, Any, ResultT]], /
    ) -> TypedHandler[P, Mapping[str, Any], ResultT]: ...
    @overload
    def __call__(
        self, function: _Several[P, Coroutine[Any, Any, ResultT]], /
    ) -> TypedHandler[P, Mapping[str, Any], ResultT]: ...
    @overload
    def __call__(
        self, function: _Optional[ArgsT, Coroutine[Any, Any, ResultT]], /
    ) -> TypedHandler[[], ArgsT, ResultT]: ...
    @overload
    def __call__(
        self, function: Callable[[ArgsT], Coroutine[Any, Any, ResultT]], /
    ) -> TypedHandler[[ArgsT], ArgsT, ResultT]: ...
    @overload
    def __call__(
        self, function: Callable[[], Coroutine[Any, Any, ResultT]], /
    ) -> TypedHandler[[], object, ResultT]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, ResultT]], /
    ) -> TypedHandler[P, Mapping[str, Any], ResultT]: ...
    @overload
    def __call__(
        self, function: _SeveralWithJob[P, JobT, ResultT], /
    ) -> TypedHandler[P, Mapping[str, Any], ResultT]: ...
    @overload
    def __call__(self, function: _OptionalWithJob[JobT, ArgsT, ResultT], /) -> TypedHandler[[], ArgsT, ResultT]: ...
    @overload
    def __call__(self, function: Callable[[JobT, ArgsT], ResultT], /) -> TypedHandler[[ArgsT], ArgsT, ResultT]: ...
    @overload
    def __call__(self, function: Callable[[JobT], ResultT], /) -> TypedHandler[[], object, ResultT]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[JobT, P], ResultT], /
    ) -> TypedHandler[P, Mapping[str, Any], ResultT]: ...
    @overload
    def __call__(self, function: _Several[P, ResultT], /) -> TypedHandler[P, Mapping[str, Any], ResultT]: ...
    @overload
    def __call__(self, function: _Optional[ArgsT, ResultT], /) -> TypedHandler[[], ArgsT, ResultT]: ...
    @overload
    def __call__(self, function: Callable[[ArgsT], ResultT], /) -> TypedHandler[[ArgsT], ArgsT, ResultT]: ...
    @overload
    def __call__(self, function: Callable[[], ResultT], /) -> TypedHandler[[], object, ResultT]: ...
    @overload
    def __call__(self, function: Callable[P, ResultT], /) -> TypedHandler[P, Mapping[str, Any], ResultT]: ...


def registration(
    type: JobType | None, options: HandlerOptions, keep: Callable[[Handler[Any, Any]], None]
) -> Registration:
    """Return the decorator that makes a function the handler of a type.

    Args:
        type: the type whose jobs it runs; None for the function's name.
        options: the options for these jobs.
        keep: called with the new handler.

    Raises:
        InvalidSettings: the type is a function, because the decorator was written without parentheses.
    """
    if callable(type):
        raise InvalidSettings(f"a handler's type is {shown(type)}; write @jobs.handler(TYPE) above the function")

    def register(function: Callable[..., Any]) -> Handler[Any, Any]:
        handler: Handler[Any, Any] = TypedHandler(type_of(function) if type is None else type, function, options)
        keep(handler)
        return handler

    return cast(Registration, register)
