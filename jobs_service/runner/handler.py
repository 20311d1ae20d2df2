"""The product of `@jobs.handler(...)`: a function, its calling convention and its options.

All errors of a handler are found here, at its registration, and not when its first job comes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

from jobs_service import json_data
from jobs_service.errors import InvalidJob, JobTooLarge, a_kind_of
from jobs_service.layer.enqueueing import ArgsT, Enqueueable, ResultT_co
from jobs_service.layer.key_parts import pack_type, unpacked_type
from jobs_service.model import UNSET, JobType
from jobs_service.redaction import Redaction
from jobs_service.runner.functions import body, name_of, refused, unwrapped
from jobs_service.runner.options import HandlerOptions
from jobs_service.runner.result_annotations import result_codec
from jobs_service.runner.signature import signature_of

Kind: TypeAlias = Literal["coroutine", "thread", "command"]
"""Where a handler runs: on the loop, in a worker thread, or as its own process."""

_JSON: Final = (dict, list, str, int, float, bool, type(None))


class Handler(Enqueueable[ArgsT, ResultT_co]):
    """A function that runs the jobs of one type; calling the handler calls the function, as a test would.

    Attributes:
        type: the type whose jobs it runs.
        packed: the type as the tuple layer packs it: 1 and 1.0 are equal in Python, but are different types.
        function: the function: `f(job)`, `f(args)`, `f(job, args)` or `f()`. The parameter that is named `job` or
            annotated RunningJob or BlockingJob gets the job. With several other parameters, `f(job, to, subject)`, they
            are given by keyword.
        options: the options for its jobs; the runner replaces them when they change.
        kind: where it runs.
        takes_job, takes_args: whether the function takes a job, and arguments.
        takes_keywords: whether its arguments are given by keyword, not as one value.
        like_options: the arguments whose names are also options of `enqueue`.
        required: names of the parameters beside the job that have no default.
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
    ) -> None:
        """Read the function's signature and check it.

        Args:
            type: the type whose jobs it runs.
            function: a coroutine function, a plain function, or a callable object or functools.partial of one.
            options: None for the defaults.
            kind: "command" for a coroutine function that runs commands; None to find out from the function.

        Raises:
            InvalidSettings: the function cannot be a handler; the message says why.
            InvalidJob, JobTooLarge: the type is invalid.
        """
        packed = pack_type(type)
        function = _underlying(function)
        found_kind = _kind_of(function)
        signature = signature_of(function)
        results = result_codec(function)
        functools.update_wrapper(self, function, updated=())
        self.packed = packed
        self.type = unpacked_type(packed)
        self.function: Callable[..., Any] = function
        self.options = HandlerOptions() if options is None else options
        self._redaction = self.options.redaction
        self.kind: Kind = kind or found_kind
        self.takes_job = signature.takes_job
        self.takes_args = signature.takes_args
        self.takes_keywords = signature.takes_keywords
        self.like_options = signature.like_options
        self.required = signature.required
        self.codec = signature.codec
        self.results = results
        self._default = signature.default
        self._defaults = signature.defaults
        self.name = name_of(function)

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

    def arguments(self, job: Any, args: Any) -> tuple[Any, ...]:
        """Return the function's positional arguments for a job and its decoded arguments."""
        jobs = (job,) if self.takes_job else ()
        return (*jobs, args) if self.takes_args and not self.takes_keywords else jobs

    def call(self, job: Any, args: Any) -> Any:
        """Call the function with a job and its decoded arguments, by its calling convention."""
        return self.function(*self.arguments(job, args), **(args if self.takes_keywords else {}))

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
