"""What `@jobs.handler(...)` makes of a function: how it is called, with what, and with which options. Floor: runner.

Everything that can be wrong with a handler is found here, when it is registered: not when its first job has come.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from jobs_service.errors import InvalidJob, InvalidSettings, a_kind_of, in_one_line, kind_of, shown
from jobs_service.layer.enqueueing import (
    ENQUEUE_OPTIONS,
    ArgsT,
    Enqueueable,
    ResultT_co,
)
from jobs_service.layer.keyspace import pack_type, unpacked_type
from jobs_service.model import UNSET, Job, JobType
from jobs_service.runner.blocking import BlockingJob
from jobs_service.runner.keywords import Keywords, Parameter, are_keywords
from jobs_service.runner.options import HandlerOptions
from jobs_service.runner.payload import Codec, codec, name_of
from jobs_service.runner.result_annotations import unfit_result

Kind: TypeAlias = Literal["coroutine", "thread", "command"]
"""Where a handler runs: on the loop, in a worker thread, or as a process of its own."""

_JOB: Final = "job"
_JOB_CLASSES: Final = frozenset({"RunningJob", "BlockingJob"})
_UNTYPED: Final = (Any, object, inspect.Parameter.empty)
_JSON: Final = frozenset({dict, list, str, int, float, bool, type(None)})
_POSITIONAL: Final = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})


class Handler(Enqueueable[ArgsT, ResultT_co]):
    """A function that runs the jobs of one type; calling it calls the function, as a test of it would.

    Attributes:
        type: the type whose jobs it runs.
        packed: the same as the tuple layer packs it: types that are equal to Python may be different ones.
        function: what is called: `f(job)`, `f(args)`, `f(job, args)` or `f()`. The parameter that is named `job` or
            annotated RunningJob or BlockingJob gets the job. With several parameters beside it, `f(job, to, subject)`,
            these are given by keyword.
        options: how its jobs are run; the runner replaces them when they change.
        kind: where it runs.
        takes_job, takes_args: which of the two it is called with.
        takes_keywords: whether its arguments are given by keyword, not as one value.
        required: names of the parameters beside the job that have no default.
        codec: what makes its arguments of a job's data, and back.
        name: module and name of the function, for logs.
    """

    def __init__(
        self,
        type: JobType,
        function: Callable[..., Any],
        options: HandlerOptions | None = None,
        *,
        kind: Literal["command"] | None = None,
    ) -> None:
        """Look at the function once.

        Args:
            type: the type whose jobs it runs.
            function: a coroutine function, a plain function, or a callable object or functools.partial of one.
            options: None for the defaults.
            kind: "command" for a coroutine function that runs commands; else it is told from the function.

        Raises:
            InvalidSettings: the function cannot be a handler; the message says why.
            InvalidJob, JobTooLarge: no type can be called that.
        """
        packed = pack_type(type)
        function = _underlying(function)
        told = _kind_of(function)
        shape = _shape_of(function)
        _check_result(function)
        functools.update_wrapper(self, function, updated=())
        self.packed = packed
        self.type = unpacked_type(packed)
        self.function: Callable[..., Any] = function
        self.options = HandlerOptions() if options is None else options
        self.kind: Kind = kind or told
        self.takes_job = shape.takes_job
        self.takes_args = shape.takes_args
        self.takes_keywords = shape.takes_keywords
        self.required = shape.required
        self.codec = shape.codec
        self._default = shape.default
        self.name = _name_of(function)

    @property
    def timeout(self) -> float:
        """The activity timeout that the type is made with, in seconds."""
        return self.options.timeout

    def data(self, args: Any) -> Any:
        """Return arguments as a job's data; UNSET for a handler that takes none, or has defaults for them.

        Raises:
            InvalidJob: they are not what the function takes.
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
        """Return JSON data, of which the function can be given arguments.

        Raises:
            InvalidJob: they are not what the function takes.
        """
        if type(data) not in _JSON:
            return self.data(data)
        if self.takes_args:
            self.codec.decode(data)
        return data

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def arguments(self, job: Any, args: Any) -> tuple[Any, ...]:
        """Return what of a job and its decoded arguments the function is called with, but for what is by keyword."""
        jobs = (job,) if self.takes_job else ()
        return (*jobs, args) if self.takes_args and not self.takes_keywords else jobs

    def call(self, job: Any, args: Any) -> Any:
        """Call the function with a job and its decoded arguments, as it takes them."""
        return self.function(*self.arguments(job, args), **(args if self.takes_keywords else {}))

    def __repr__(self) -> str:
        return f"<Handler {self.name} of {self.type!r}>"


class _Shape(NamedTuple):
    """What a function is called with."""

    takes_job: bool
    takes_args: bool
    codec: Codec
    takes_keywords: bool = False
    required: tuple[str, ...] = ()
    default: Any = None


class _Scope(NamedTuple):
    """The names that a function's annotations may use."""

    globals: dict[str, Any]
    locals: dict[str, Any]


def _underlying(function: Any) -> Any:
    """Return what a handler of another type, or a static method, was made of."""
    if isinstance(function, Handler):
        return function.function
    return function.__func__ if isinstance(function, staticmethod) else function


def _kind_of(function: Any) -> Literal["coroutine", "thread"]:
    if inspect.isclass(function):
        raise _refused(function, "it is a class; register an object with a __call__, or a function")
    if not callable(function):
        raise _refused(function, f"{a_kind_of(function)} cannot be called")
    body = _body(function)
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise _refused(function, "it is a generator; a handler returns its result and does not yield")
    if inspect.iscoroutinefunction(body):
        return "coroutine"
    if inspect.iscoroutinefunction(_unwrapped(body)):
        raise _refused(function, "a plain function wraps a coroutine function; make the wrapper `async def`")
    return "thread"


def _shape_of(function: Any) -> _Shape:
    positional, keyword_only = _parameters(function)
    scope = _scope_of(_unwrapped(_body(function)))
    jobs = [_gets_job(function, parameter, scope) for parameter in positional]
    if any(jobs[1:]):
        names = " and ".join(parameter.name for parameter in positional)
        raise _refused(
            function,
            f"it takes {names}; of several parameters the first, and only it, gets the job: "
            "name it job or annotate it RunningJob",
        )
    takes_job = jobs[:1] == [True]
    payload = positional[takes_job:]
    if are_keywords(payload, keyword_only):
        return _by_keyword(function, takes_job, [*payload, *keyword_only], scope)
    if not payload:
        return _Shape(takes_job, False, codec(Any))
    [parameter] = payload
    is_required = parameter.default is parameter.empty
    return _Shape(
        takes_job,
        True,
        _codec_of(function, parameter, scope),
        required=(parameter.name,) if is_required else (),
        default=None if is_required else parameter.default,
    )


def _check_result(function: Any) -> None:
    """Refuse a function whose annotation says that it returns what no store takes: every one of its jobs would fail."""
    body = _body(function)
    if hasattr(body, "__wrapped__"):
        return  # its annotations are those of another function, whose result a decorator may make something else of
    try:
        annotation = getattr(body, "__annotations__", {}).get("return", Any)
        unfit = unfit_result(_evaluated("return", annotation, _scope_of(body)))
    except Exception:  # a name that is imported for type checkers only, or user code that fails as it is evaluated
        return
    if unfit is not None:
        raise _refused(
            function,
            f"it returns {name_of(unfit)}, which is no JSON, and cannot be kept as a job's result; "
            "make a dict, list, str, number or bool of it",
        )


def _by_keyword(function: Any, takes_job: bool, parameters: list[inspect.Parameter], scope: _Scope) -> _Shape:
    """Return the shape of a function whose arguments are given by keyword."""
    taken: dict[str, Parameter] = {}
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise _refused(function, f"parameter {parameter.name} is positional-only; several are given by keyword")
        if parameter.name in ENQUEUE_OPTIONS:
            raise _refused(function, f"enqueue has an option {parameter.name}; call the parameter otherwise")
        taken[parameter.name] = Parameter(_codec_of(function, parameter, scope), parameter.default is parameter.empty)
    required = tuple(name for name, parameter in taken.items() if parameter.required)
    return _Shape(takes_job, True, Keywords(taken), takes_keywords=True, required=required, default={})


def _codec_of(function: Any, parameter: inspect.Parameter, scope: _Scope) -> Codec:
    annotation = _resolved(function, parameter, scope)
    try:
        return codec(Any if annotation in _UNTYPED else annotation, scope.locals)
    except InvalidSettings as error:
        raise _refused(function, f"parameter {parameter.name}: {error}") from None


def _parameters(function: Any) -> tuple[list[inspect.Parameter], list[inspect.Parameter]]:
    """Return the positional parameters that a handler is called with, and the others, after a look at all of them."""
    try:
        found = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        raise _refused(function, "its parameters cannot be told; wrap it into a function") from None
    for parameter in found:
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise _refused(function, f"it takes *{parameter.name}; name its parameters")
    positional = [parameter for parameter in found if parameter.kind in _POSITIONAL]
    if positional and positional[0].name in ("self", "cls"):
        raise _refused(function, f"it takes {positional[0].name}; register the bound method of an object")
    keyword_only = [parameter for parameter in found if parameter.kind is parameter.KEYWORD_ONLY]
    for parameter in keyword_only:
        if parameter.name == _JOB and parameter.default is parameter.empty:
            raise _refused(function, "parameter job is keyword-only; only the first parameter gets the job")
    # A job that is there already, by functools.partial, is no argument.
    return positional, [parameter for parameter in keyword_only if parameter.name != _JOB]


def _gets_job(function: Any, parameter: inspect.Parameter, scope: _Scope) -> bool:
    """Whether a parameter gets the job.

    Its class may be imported for type checkers only, then its name decides.
    """
    named = parameter.name == _JOB
    try:
        annotation = _resolved(function, parameter, scope)
    except InvalidSettings:
        if named or _names_job(parameter.annotation):
            return True
        raise
    if _is_job(annotation):
        if annotation is BlockingJob and inspect.iscoroutinefunction(_body(function)):
            why = "it is a coroutine function, which gets a RunningJob; a BlockingJob is for plain functions"
            raise _refused(function, why)
        return True
    if named and annotation not in _UNTYPED and _is_payload(annotation):
        raise _refused(function, f"parameter job is annotated {name_of(annotation)} but gets the job; call it args")
    return named


def _is_job(annotation: Any) -> bool:
    if isinstance(annotation, type):
        return issubclass(annotation, Job)
    members = typing.get_args(annotation)
    return bool(members) and all(map(_is_job, members))


def _names_job(annotation: Any) -> bool:
    names = annotation.split("|") if isinstance(annotation, str) else []
    return bool(names) and all(name.strip(" '\"").rpartition(".")[2] in _JOB_CLASSES for name in names)


def _is_payload(annotation: Any) -> bool:
    try:
        codec(annotation)
    except InvalidSettings:
        return False
    return True


def _resolved(function: Any, parameter: inspect.Parameter, scope: _Scope) -> Any:
    """Return a parameter's annotation, what is a string in it evaluated."""
    if parameter.annotation is parameter.empty:
        return parameter.empty
    try:
        return _evaluated(parameter.name, parameter.annotation, scope)
    except Exception as error:  # evaluating an annotation runs the user's code
        raise _refused(
            function,
            f"the annotation {shown(parameter.annotation)} of parameter {parameter.name} cannot be resolved: "
            f"{in_one_line(str(error), 80)}",
        ) from None


def _evaluated(name: str, annotation: Any, scope: _Scope) -> Any:
    alone = types.SimpleNamespace(__annotations__={name: annotation})
    return typing.get_type_hints(alone, scope.globals, scope.locals, include_extras=True)[name]


def _scope_of(function: Any) -> _Scope:
    """Return the names of a function's module, and those of the functions that it is defined inside of.

    Those are found in its closure and, as annotations alone make no closure, in the frames that are still running.
    """
    globals: dict[str, Any] = getattr(function, "__globals__", {})
    code = getattr(function, "__code__", None)
    locals: dict[str, Any] = {}
    for frame in _running_around(function.__qualname__, globals) if code else ():
        locals = {**frame.f_locals, **locals}
    for name, cell in zip(code.co_freevars if code else (), getattr(function, "__closure__", None) or (), strict=True):
        try:
            locals[name] = cell.cell_contents
        except ValueError:  # a name that is not assigned yet
            continue
    return _Scope(globals, locals)


def _running_around(qualname: str, globals: dict[str, Any]) -> Iterator[types.FrameType]:
    """Yield the frames of the functions that a function is defined inside of, the nearest first."""
    *parts, _ = qualname.split(".<locals>.")
    around = {".<locals>.".join(parts[: count + 1]) for count in range(len(parts))}
    frame = inspect.currentframe()
    while around and frame is not None:
        if frame.f_globals is globals and frame.f_code.co_qualname in around:
            around.remove(frame.f_code.co_qualname)
            yield frame
        frame = frame.f_back


def _body(function: Any) -> Any:
    """Return the function whose code runs: behind partials, objects with a __call__ and bound methods."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    return getattr(function, "__func__", function)


def _unwrapped(function: Any) -> Any:
    """Return the function whose parameters count: the one that decorators say they wrap."""
    try:
        return inspect.unwrap(function)
    except ValueError:  # one that says it wraps itself
        return function


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return in_one_line(f"{named.__module__}.{named.__qualname__}".replace(".<locals>", ""), 120)


def type_of(function: Any) -> JobType:
    """Return the type that a function's name stands for."""
    name = getattr(_body(function), "__name__", None)
    if not isinstance(name, str) or name in ("<lambda>", "__call__"):
        raise _refused(function, "it has no name that its jobs could go by; give their type")
    return name


def _refused(function: Any, why: str) -> InvalidSettings:
    try:
        name = _name_of(function)
    except Exception:  # an object that fails when its attributes are read
        name = kind_of(function)
    return InvalidSettings(f"{name} cannot be a handler: {why}")
