"""The product of `@jobs.handler(...)`: a function, its calling convention and its options.

All errors of a handler are found here, at its registration, and not when its first job comes.
The module has more than 600 lines because a third of them tell type checkers about the shapes of functions.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Concatenate, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast, overload

from jobs_service import json_data
from jobs_service.errors import InvalidJob, InvalidSettings, JobTooLarge, a_kind_of, shown
from jobs_service.layer.keyspace import pack_type, unpacked_type
from jobs_service.model import UNSET, Job, JobType, RunningJob
from jobs_service.model.enqueueing import ENQUEUE_OPTIONS, ArgsT, Enqueueable, P, ResultT, ResultT_co, TypedEnqueued
from jobs_service.redaction import Redaction
from jobs_service.runner.functions import BlockingJob, Scope, body, name_of, refused, resolved, scope_of, unwrapped
from jobs_service.runner.options import HandlerOptions
from jobs_service.runner.payload import Codec, Keywords, Parameter, are_keywords, codec, result_codec, type_name

JobT = TypeVar("JobT", BlockingJob, RunningJob, Job)
JobT_contra = TypeVar("JobT_contra", BlockingJob, RunningJob, Job, contravariant=True)
ArgsT_contra = TypeVar("ArgsT_contra", contravariant=True)

Kind: TypeAlias = Literal["coroutine", "thread", "isolated", "command"]
"""Where a handler runs: on the loop, in a worker thread, in a process of a pool, or as its own process."""

_JOB: Final = "job"
_JOB_CLASSES: Final = frozenset({"RunningJob", "BlockingJob"})
_UNTYPED: Final = (Any, object, inspect.Parameter.empty)
_POSITIONAL: Final = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})
_JSON: Final = (dict, list, str, int, float, bool, type(None))


class _Provided:
    """The default of a parameter that gets a resource."""

    def __repr__(self) -> str:
        return "PROVIDED"


PROVIDED: Final[Any] = _Provided()
"""The default of a parameter that gets a resource: so a type checker knows that `enqueue` does not take it."""

IsResource: TypeAlias = Callable[[type[Any]], bool]
"""Whether parameters annotated with a class get a resource, and not a job's arguments."""


# Signatures


class Signature(NamedTuple):
    """The calling convention of a function.

    Attributes:
        takes_job, takes_args: whether it takes the job, and arguments.
        codec: codec of its arguments.
        takes_keywords: whether its arguments are given by keyword, not as one value.
        required: names of the parameters beside the job that have no default.
        default: the arguments of a call that gives none.
        defaults: defaults of keyword arguments by name, if JSON can carry them.
        like_options: names of keyword parameters that are also options of `enqueue`.
        single: name of the parameter that gets the arguments as one value; empty if there is none.
        annotations: classes of the arguments by name.
        resources: classes of the resources by the names of their parameters.
    """

    takes_job: bool
    takes_args: bool
    codec: Codec
    takes_keywords: bool = False
    required: tuple[str, ...] = ()
    default: Any = None
    defaults: Mapping[str, Any] = MappingProxyType({})
    like_options: tuple[str, ...] = ()
    single: str = ""
    annotations: Mapping[str, type[Any]] = MappingProxyType({})
    resources: Mapping[str, type[Any]] = MappingProxyType({})


def signature_of(function: Any, is_resource: IsResource = lambda kind: False) -> Signature:
    """Return the calling convention of a function.

    Raises:
        InvalidSettings: a handler cannot have such parameters; the message gives the reason.
    """
    positional, keyword_only = _parameters(function)
    scope = scope_of(unwrapped(body(function)))
    resources: dict[str, type[Any]] = {}
    annotations: dict[str, type[Any]] = {}
    for parameter in [*positional, *keyword_only]:
        kind = _class_of(function, parameter, scope)
        if parameter.default is PROVIDED or (
            kind is not None and parameter.default is parameter.empty and is_resource(kind)
        ):
            resources[parameter.name] = _resource(function, parameter, kind)
        elif kind is not None:
            annotations[parameter.name] = kind
    positional = [parameter for parameter in positional if parameter.name not in resources]
    keyword_only = [parameter for parameter in keyword_only if parameter.name not in resources]
    found = _without_resources(function, positional, keyword_only, scope)
    if resources and found.single and positional[-1].kind is inspect.Parameter.POSITIONAL_ONLY:
        raise refused(function, f"parameter {found.single} is positional-only, beside a resource")
    if found.takes_job and resources and next(iter(inspect.signature(function).parameters)) != positional[0].name:
        raise refused(function, f"its first parameter gets the job: put {positional[0].name} before the resources")
    return found._replace(resources=MappingProxyType(resources), annotations=MappingProxyType(annotations))


def _class_of(function: Any, parameter: inspect.Parameter, scope: Scope) -> type[Any] | None:
    """Return the class that a parameter is annotated with, if it is neither the job's nor one for all values."""
    try:
        annotation = resolved(function, parameter, scope)
    except InvalidSettings:  # of a job, if a class for type checkers only; all others are refused below
        return None
    is_class = isinstance(annotation, type) and annotation not in _UNTYPED and parameter.name != _JOB
    return annotation if is_class and not _is_job(annotation) else None


def _resource(function: Any, parameter: inspect.Parameter, kind: type[Any] | None) -> type[Any]:
    if kind is None:
        raise refused(function, f"parameter {parameter.name} = PROVIDED: annotate it with the class that is provided")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise refused(function, f"parameter {parameter.name} is positional-only; resources are given by keyword")
    return kind


def _without_resources(
    function: Any, positional: list[inspect.Parameter], keyword_only: list[inspect.Parameter], scope: Scope
) -> Signature:
    """Return the calling convention as far as job and arguments are concerned."""
    jobs = [_gets_job(function, parameter, scope) for parameter in positional]
    if any(jobs[1:]):
        names = " and ".join(parameter.name for parameter in positional)
        raise refused(
            function,
            f"it takes {names}; of several parameters the first, and only it, gets the job: "
            "name it job or annotate it RunningJob",
        )
    takes_job = jobs[:1] == [True]
    payload = positional[takes_job:]
    if are_keywords(payload, keyword_only):
        return _with_keywords(function, takes_job, [*payload, *keyword_only], scope)
    if not payload:
        return Signature(takes_job, False, codec(Any))
    [parameter] = payload
    is_required = parameter.default is parameter.empty
    return Signature(
        takes_job,
        True,
        _codec_of(function, parameter, scope),
        required=(parameter.name,) if is_required else (),
        default=None if is_required else parameter.default,
        single=parameter.name,
    )


def _with_keywords(function: Any, takes_job: bool, parameters: list[inspect.Parameter], scope: Scope) -> Signature:
    """Return the signature of a function with keyword arguments."""
    taken: dict[str, Parameter] = {}
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise refused(function, f"parameter {parameter.name} is positional-only; several are given by keyword")
        taken[parameter.name] = Parameter(_codec_of(function, parameter, scope), parameter.default is parameter.empty)
    required = tuple(name for name, parameter in taken.items() if parameter.required)
    defaults = {
        each.name: each.default
        for each in parameters
        if each.default is not each.empty and _is_data(taken[each.name].codec, each.default)
    }
    like_options = tuple(name for name in taken if name in ENQUEUE_OPTIONS)
    return Signature(takes_job, True, Keywords(taken), True, required, {}, defaults, like_options)


def _is_data(codec: Codec, default: Any) -> bool:
    try:
        json_data.encode(codec.encode(default))
    except (InvalidJob, JobTooLarge):
        return False
    return True


def _codec_of(function: Any, parameter: inspect.Parameter, scope: Scope) -> Codec:
    annotation = resolved(function, parameter, scope)
    try:
        return codec(Any if annotation in _UNTYPED else annotation, scope.locals)
    except InvalidSettings as error:
        raise refused(function, f"parameter {parameter.name}: {error}, and what jobs.provide(...) names") from None


def _parameters(function: Any) -> tuple[list[inspect.Parameter], list[inspect.Parameter]]:
    """Return the positional and the keyword-only parameters; refuse parameters that no handler may have."""
    try:
        found = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        raise refused(function, "its parameters cannot be told; wrap it into a function") from None
    for parameter in found:
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise refused(function, f"it takes *{parameter.name}; name its parameters")
        if parameter.kind is parameter.VAR_KEYWORD:
            raise refused(function, f"it takes **{parameter.name}, of which a job has nothing; name its parameters")
    positional = [parameter for parameter in found if parameter.kind in _POSITIONAL]
    if positional and positional[0].name in ("self", "cls"):
        raise refused(function, f"it takes {positional[0].name}; register the bound method of an object")
    keyword_only = [parameter for parameter in found if parameter.kind is parameter.KEYWORD_ONLY]
    for parameter in keyword_only:
        if parameter.name == _JOB and parameter.default is parameter.empty:
            raise refused(function, "parameter job is keyword-only; only the first parameter gets the job")
    # A keyword-only job that has a default was given by functools.partial; it is not an argument of the handler.
    return positional, [parameter for parameter in keyword_only if parameter.name != _JOB]


def _gets_job(function: Any, parameter: inspect.Parameter, scope: Scope) -> bool:
    """Whether a parameter gets the job.

    If the annotation cannot be evaluated, because the class is imported for type checkers only, names decide.
    """
    named = parameter.name == _JOB
    try:
        annotation = resolved(function, parameter, scope)
    except InvalidSettings:
        if named or _names_job(parameter.annotation):
            return True
        raise
    if _is_job(annotation):
        if annotation is BlockingJob and inspect.iscoroutinefunction(body(function)):
            why = "it is a coroutine function, which gets a RunningJob; a BlockingJob is for plain functions"
            raise refused(function, why)
        return True
    if named and annotation not in _UNTYPED and is_payload(annotation):
        raise refused(function, f"parameter job is annotated {type_name(annotation)} but gets the job; call it args")
    return named


def _is_job(annotation: Any) -> bool:
    if isinstance(annotation, type):
        return issubclass(annotation, Job)
    members = typing.get_args(annotation)
    return bool(members) and all(map(_is_job, members))


def _names_job(annotation: Any) -> bool:
    names = annotation.split("|") if isinstance(annotation, str) else []
    return bool(names) and all(name.strip(" '\"").rpartition(".")[2] in _JOB_CLASSES for name in names)


def is_payload(annotation: Any) -> bool:
    """Whether an annotation is one that a job's arguments can have."""
    try:
        codec(annotation)
    except InvalidSettings:
        return False
    return True


# Handlers


class Handler(Enqueueable[ArgsT, ResultT_co]):
    """A function that runs the jobs of one type; calling the handler calls the function, as a test would.

    Attributes:
        type: the type whose jobs it runs.
        packed: the type as the tuple layer packs it: 1 and 1.0 are equal in Python, but are different types.
        function: the function: `f(job)`, `f(args)`, `f(job, args)` or `f()`. The parameter that is named `job` or
            annotated RunningJob or BlockingJob gets the job. With several other parameters, `f(job, to, subject)`, they
            are given by keyword. Resources are given by keyword as well, in addition.
        options: the options for its jobs; the runner replaces them when they change.
        kind: where it runs.
        takes_job, takes_args: whether the function takes a job, and arguments.
        takes_keywords: whether its arguments are given by keyword, not as one value.
        like_options: the arguments whose names are also options of `enqueue`.
        required: names of the parameters beside the job that have no default.
        annotations: classes of its arguments by name.
        resources: classes of the resources that it gets, by the names of its parameters.
        codec: turns its arguments into a job's data, and back.
        results: turns its results into JSON data, and back.
        name: module and name of the function, for logs.
    """

    def __init__(
        self,
        type: JobType,
        function: Callable[..., Any],
        options: HandlerOptions | None = None,
        *,
        kind: Literal["command"] | None = None,
        is_resource: IsResource = lambda kind: False,
    ) -> None:
        """Read the function's signature and check it.

        Args:
            type: the type whose jobs it runs.
            function: a coroutine function, a plain function, or a callable object or functools.partial of one.
            options: None for the defaults.
            kind: "command" for a coroutine function that runs commands; None to find out from the function.
            is_resource: whether parameters annotated with a class get a resource.

        Raises:
            InvalidSettings: the function cannot be a handler; the message says why.
            InvalidJob, JobTooLarge: the type is invalid.
        """
        packed = pack_type(type)
        function = _underlying(function)
        found_kind = _kind_of(function)
        signature = signature_of(function, is_resource)
        results = result_codec(function)
        functools.update_wrapper(self, function, updated=())
        self.packed = packed
        self.type = unpacked_type(packed)
        self.function: Callable[..., Any] = function
        self.options = HandlerOptions() if options is None else options
        self._redaction = self.options.redaction
        self.kind: Kind = kind or ("isolated" if self.options.isolated else found_kind)
        if self.options.isolated and found_kind == "coroutine":
            raise refused(
                function, "isolated=True is for plain functions, and it is a coroutine function: make it `def`"
            )
        if self.options.isolated and signature.resources:
            raise refused(function, "isolated=True is for functions without resources, which another process has open")
        if self.options.memory_limit is not None and not self.options.isolated:
            limit = f"memory_limit={self.options.memory_limit}"
            raise refused(function, f"{limit} is for isolated handlers: add isolated=True")
        self.takes_job = signature.takes_job
        self.takes_args = signature.takes_args
        self.takes_keywords = signature.takes_keywords
        self.like_options = signature.like_options
        self.required = signature.required
        self.annotations = signature.annotations
        self.resources = signature.resources
        self.codec = signature.codec
        self.results = results
        self._default = signature.default
        self._defaults = signature.defaults
        self._single = signature.single
        self.name = name_of(function)

    def move(self, prefix: str) -> None:
        """Put a prefix before the type, unless it is empty; the type is a string."""
        if prefix and isinstance(self.type, str):
            self.type = prefix + self.type
            self.packed = pack_type(self.type)

    @property
    def is_plain(self) -> bool:
        """Whether it is a plain function: it has no task that could be canceled."""
        return self.kind in ("thread", "isolated")

    @property
    def timeout(self) -> float:
        """The activity timeout of a newly made type, in seconds."""
        return self.options.timeout

    @property
    def redaction(self) -> Redaction | None:
        """The secret fields of its jobs; None if the handler declares none."""
        return self._redaction

    def data(self, args: Any) -> Any:
        """Return arguments as a job's data.

        Args:
            args: UNSET for a handler without arguments, or with a default for each.

        Raises:
            InvalidJob: they do not fit the function.
        """
        if args is UNSET:
            if self.required:
                missing = ", ".join(self.required)
                raise InvalidJob(f"{self.name} takes arguments: give them after the handler ({missing})").about(
                    self.type
                )
            if not self.takes_args:
                return None
            args = self._default
        return self.codec.encode(args)

    def checked(self, data: Any) -> Any:
        """Return a job's data, from the data themselves or from arguments.

        Args:
            data: JSON data are checked and returned as they are; other values are encoded as arguments.

        Raises:
            InvalidJob: they do not fit the function.
        """
        if not isinstance(data, _JSON):
            return self.data(data)
        if self.takes_args:
            self.codec.decode(data)
        return data

    def result(self, data: Any) -> Any:
        """Return a result as the function returned it, from its JSON data.

        Raises:
            InvalidJob: it does not fit the function's annotation.
        """
        return self.results.decode(data)

    def whole(self, data: Any) -> Any:
        """Return a job's data with defaults for missing arguments; unchanged if a default differs each time."""
        if not self.takes_args:
            return data
        try:
            found, again = (self._whole(data) for _ in range(2))
        except (InvalidJob, JobTooLarge):
            return data
        return found if json_data.canonical(found) == json_data.canonical(again) else data

    def _whole(self, data: Any) -> Any:
        args = self.codec.decode(data)
        return self.codec.encode({**self._defaults, **args} if self.takes_keywords else args)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def call(self, job: Any, args: Any, resources: Mapping[str, Any] | None = None) -> Any:
        """Call the function with a job, its decoded arguments, and the resources by their parameters."""
        jobs = (job,) if self.takes_job else ()
        if resources:
            given = args if self.takes_keywords else {self._single: args} if self.takes_args else {}
            return self.function(*jobs, **given, **resources)
        if self.takes_keywords:
            return self.function(*jobs, **args)
        return self.function(*jobs, args) if self.takes_args else self.function(*jobs)

    def __repr__(self) -> str:
        return f"<Handler {self.name} of {self.type!r}>"


def _underlying(function: Any) -> Any:
    """Return the function of a handler of another type, or of a static method."""
    if isinstance(function, Handler):
        return function.function
    return function.__func__ if isinstance(function, staticmethod) else function


def _kind_of(function: Any) -> Literal["coroutine", "thread"]:
    if inspect.isclass(function):
        raise refused(function, "it is a class; register an object with a __call__, or a function")
    if not callable(function):
        raise refused(function, f"{a_kind_of(function)} cannot be called")
    code = body(function)
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise refused(function, "it is a generator; a handler returns its result and does not yield")
    if inspect.iscoroutinefunction(code):
        return "coroutine"
    if inspect.iscoroutinefunction(unwrapped(code)):
        raise refused(function, "a plain function wraps a coroutine function; make the wrapper `async def`")
    return "thread"


def type_of(function: Any) -> JobType:
    """Return the type of a handler that is registered without one: the name of its function."""
    name = getattr(body(function), "__name__", None)
    if not isinstance(name, str) or name in ("<lambda>", "__call__"):
        raise refused(function, "it has no name that its jobs could go by; give their type")
    return name


# Types for type checkers: the arguments and the result of a function's jobs
#
# The shapes of functions overlap: one with a default fits where a value is given, and where none is. The first shape
# that fits is meant. Those that mypy takes for unreachable are reached by functions with keyword-only parameters.
# mypy: disable-error-code="overload-overlap, overload-cannot-match"


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
    type: JobType | None,
    options: HandlerOptions,
    keep: Callable[[Handler[Any, Any]], None],
    is_resource: IsResource = lambda kind: False,
) -> Registration:
    """Return the decorator that makes a function the handler of a type.

    Args:
        type: the type whose jobs it runs; None for the function's name.
        options: the options for these jobs.
        keep: called with the new handler.
        is_resource: whether parameters annotated with a class get a resource.

    Raises:
        InvalidSettings: the type is a function, because the decorator was written without parentheses.
    """
    if callable(type):
        raise InvalidSettings(f"a handler's type is {shown(type)}; write @jobs.handler(TYPE) above the function")

    def register(function: Callable[..., Any]) -> Handler[Any, Any]:
        named = type_of(function) if type is None else type
        handler: Handler[Any, Any] = TypedHandler(named, function, options, is_resource=is_resource)
        keep(handler)
        return handler

    return cast(Registration, register)
