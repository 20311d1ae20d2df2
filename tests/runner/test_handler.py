"""Handlers: what is found out from a function, what is refused at registration, how annotations are resolved."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_type

import pytest

from jobs_service.errors import InvalidJob, InvalidSettings
from jobs_service.layer.enqueueing import ArgsT, ResultT
from jobs_service.model import UNSET, Job, RunningJob
from jobs_service.runner import blocking as blocking_module
from jobs_service.runner.handler import Handler
from jobs_service.runner.options import HandlerOptions
from jobs_service.runner.registration import Registration, TypedHandler, registration
from jobs_service.service import JobsService

if TYPE_CHECKING:
    from jobs_service.model import RunningJob as Hidden
    from jobs_service.runner.blocking import BlockingJob

JOB: Any = object()


@dataclass
class Thumbnail:
    url: str
    width: int = 640


PAYLOAD = {"url": "http://example.org/", "width": 3}
ARGS = Thumbnail("http://example.org/", 3)


async def both(job: RunningJob, args: Thumbnail) -> tuple[Any, Any]:
    """Give back what it was given."""
    return job, args


async def only_args(args: Thumbnail) -> Any:
    return args


async def only_job(job: RunningJob) -> RunningJob:
    return job


async def nothing() -> str:
    return "nothing"


def plain(job: Any, args: Thumbnail) -> tuple[Any, Any]:
    return job, args


class Scaler:
    async def __call__(self, job: RunningJob, args: Thumbnail) -> tuple[Any, Any]:
        return job, args

    async def method(self, args: Thumbnail) -> Any:
        return args

    @staticmethod
    async def static(args: Thumbnail) -> Any:
        return args

    @classmethod
    def of_class(cls, args: Thumbnail) -> Any:
        return args


class Blocking:
    def __call__(self, args: Thumbnail) -> Any:
        return args


class Generating:
    def __call__(self, args: Thumbnail) -> Iterator[int]:
        yield args.width


def called(handler: Handler[Any, Any], data: Any) -> Any:
    """Call a handler as the runner does, and return what it returns; a coroutine is run to its end."""
    result = handler.call(JOB, handler.codec.decode(data) if handler.takes_args else None)
    if not inspect.iscoroutine(result):
        return result
    with pytest.raises(StopIteration) as stopped:
        result.send(None)
    return stopped.value.value


def refusal(function: Any) -> str:
    """Return why a function cannot be a handler, checked to be one line."""
    with pytest.raises(InvalidSettings) as caught:
        Handler("type", function)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert " cannot be a handler: " in message
    return message


# what it is called with


@pytest.mark.parametrize(
    ("function", "kind", "takes_job", "takes_args", "result"),
    [
        (both, "coroutine", True, True, (JOB, ARGS)),
        (only_args, "coroutine", False, True, ARGS),
        (only_job, "coroutine", True, False, JOB),
        (nothing, "coroutine", False, False, "nothing"),
        (plain, "thread", True, True, (JOB, ARGS)),
        (lambda: 3, "thread", False, False, 3),
        (lambda job: job, "thread", True, False, JOB),
        (lambda payload: payload, "thread", False, True, PAYLOAD),
        (lambda job, payload: (job, payload), "thread", True, True, (JOB, PAYLOAD)),
        (Scaler(), "coroutine", True, True, (JOB, ARGS)),
        (Scaler().method, "coroutine", False, True, ARGS),
        (Scaler.static, "coroutine", False, True, ARGS),
        (Scaler.__dict__["static"], "coroutine", False, True, ARGS),
        (Scaler.of_class, "thread", False, True, ARGS),
        (Blocking(), "thread", False, True, ARGS),
        (functools.partial(both, JOB), "coroutine", False, True, (JOB, ARGS)),
        (functools.partial(functools.partial(plain), args=ARGS), "thread", True, False, (JOB, ARGS)),
        (functools.partial(Scaler(), JOB), "coroutine", False, True, (JOB, ARGS)),
        (functools.partial(Blocking()), "thread", False, True, ARGS),
        (functools.lru_cache(lambda: 7), "thread", False, False, 7),
    ],
)
def test_kind_and_parameters_are_found_out_from_the_function(
    function: Any, kind: str, takes_job: bool, takes_args: bool, result: Any
) -> None:
    handler: Handler[Any, Any] = Handler("type", function)
    assert (handler.kind, handler.takes_job, handler.takes_args) == (kind, takes_job, takes_args)
    assert called(handler, PAYLOAD) == result


def test_a_parameter_of_any_name_that_is_annotated_with_the_jobs_class_gets_the_job() -> None:
    def direct(running: RunningJob, args: int) -> None: ...
    def hidden(running: Hidden, args: int) -> None: ...
    def blocking(running: BlockingJob, args: int) -> None: ...
    def quoted(running: "RunningJob", args: int) -> None: ...  # noqa: UP037
    def base(running: Job, args: int) -> None: ...
    def either(running: RunningJob | BlockingJob, args: int) -> None: ...

    def imported(running: blocking_module.BlockingJob, args: int) -> None: ...

    for function in (direct, blocking, quoted, base, either, imported):
        handler: Handler[Any, Any] = Handler("type", function)
        assert (handler.takes_job, handler.takes_args) == (True, True)
    # A class under another name that only type checkers can see: nothing tells it.
    assert "annotation 'Hidden' of parameter running cannot be resolved" in refusal(hidden)


def test_a_job_parameter_needs_no_annotation_that_can_be_resolved() -> None:
    def hidden(job: Hidden) -> None: ...

    assert Handler("type", hidden).takes_job


def test_keyword_only_parameters_with_a_default_are_left_alone() -> None:
    def more(args: int, *, retries: int = 3, **others: Any) -> tuple[int, int]:
        return args, retries

    assert called(Handler("type", more), 1) == (1, 3)


def test_the_function_decides_on_arguments_with_a_default() -> None:
    def optional(args: int | None = 5) -> int | None:
        return args

    assert called(Handler("type", optional), None) is None


def test_a_decorated_function_keeps_its_parameters() -> None:
    def logged(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return wrapper

    handler: Handler[Any, Any] = Handler("type", logged(both))
    assert handler.kind == "coroutine"
    assert called(handler, PAYLOAD) == (JOB, ARGS)


# what it is beside


async def test_calling_a_handler_calls_the_function() -> None:
    handler: Handler[Thumbnail, Any] = Handler("type", both)
    assert await handler(JOB, args=ARGS) == (JOB, ARGS)


def test_a_handler_looks_like_its_function() -> None:
    handler: Handler[Any, Any] = Handler("type", both)
    assert handler.__name__ == "both"  # type: ignore[attr-defined]
    assert handler.__doc__ == both.__doc__
    assert inspect.signature(handler) == inspect.signature(both)
    assert handler.name == f"{__name__}.both"
    assert repr(handler) == f"<Handler {__name__}.both of 'type'>"
    assert Handler("type", Scaler()).name == f"{__name__}.Scaler"
    assert Handler("type", functools.partial(plain, JOB)).name == f"{__name__}.plain"


def mail(to: str, subject: str = "hi", *, parts: list[int] | None = None) -> Any:
    return to, subject, parts


async def mail_of_job(job: RunningJob, to: str, subject: str = "hi") -> Any:
    return job, to, subject


def only_keywords(*, size: int) -> int:
    return size


@pytest.mark.parametrize(
    ("function", "required", "args", "result"),
    [
        (mail, ("to",), {"to": "ada"}, ("ada", "hi", None)),
        (mail, ("to",), {"to": "ada", "subject": "ho", "parts": [1]}, ("ada", "ho", [1])),
        (mail_of_job, ("to",), {"to": "ada"}, (JOB, "ada", "hi")),
        (only_keywords, ("size",), {"size": 3}, 3),
        (functools.partial(mail, "ada"), (), {"subject": "ho"}, None),
        (functools.partial(plain, job=JOB), ("args",), {"args": ARGS}, (JOB, ARGS)),
        (lambda a=1, b=2: (a, b), (), {}, (1, 2)),
    ],
)
def test_several_parameters_are_given_by_keyword(
    function: Any, required: tuple[str, ...], args: dict[str, Any], result: Any
) -> None:
    handler: Handler[Any, Any] = Handler("type", function)
    assert handler.required == required
    if isinstance(function, functools.partial) and function.func is mail:
        # One parameter is left, and what is keyword-only with a default is the function's own business.
        assert not handler.takes_keywords
        return
    assert handler.takes_keywords
    assert called(handler, handler.data(args)) == result


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"to": 3}, "parameter to: the data should be a str; it is 3"),
        ({"to": "ada", "parts": ["a"]}, "parameter parts: the data does not fit list[int] | None: "),
        ({}, "parameter to is missing"),
        ({"to": "ada", "subjekt": "a"}, "there is no parameter 'subjekt'; did you mean subject?"),
        ({"to": "ada", 3: "a"}, "there is no parameter 3; there are to, subject, parts"),
        ("ada", "arguments by keyword, or a dict of them, should be given; it is 'ada'"),
    ],
)
def test_arguments_by_keyword_that_do_not_fit_are_named(args: Any, said: str) -> None:
    handler: Handler[Any, Any] = Handler("type", mail)
    with pytest.raises(InvalidJob) as caught:
        handler.data(args)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_decorator_without_parentheses_is_refused() -> None:
    jobs = JobsService("memory:")

    async def forgotten() -> None: ...

    decorate: Any = jobs.handler
    for function in (forgotten, jobs.handler("type")(forgotten), mail):
        with pytest.raises(
            InvalidSettings, match=r"^a handler's type is .*; write @jobs\.handler\(TYPE\) above the func"
        ):
            decorate(function)


def test_names_that_a_function_does_not_know_any_more_are_ignored_in_what_is_stored() -> None:
    handler: Handler[Any, Any] = Handler("type", mail)
    assert called(handler, {"to": "ada", "later": 1}) == ("ada", "hi", None)
    with pytest.raises(InvalidJob, match="the data should be a dict of arguments; it is None"):
        handler.codec.decode(None)


def test_a_default_is_what_is_enqueued_without_arguments() -> None:
    def with_default(args: Thumbnail = ARGS) -> Any:
        return args

    handler: Handler[Any, Any] = Handler("type", with_default)
    assert handler.data(UNSET) == PAYLOAD
    needs: Handler[Any, Any] = Handler("type", mail)
    with pytest.raises(InvalidJob, match=r"mail takes arguments: give them after the handler \(to\)"):
        needs.data(UNSET)


def test_attributes_of_a_function_do_not_become_the_handlers() -> None:
    def marked() -> None: ...

    marked.type = "other"  # type: ignore[attr-defined]
    marked.arguments = None  # type: ignore[attr-defined]
    handler: Handler[Any, Any] = Handler("type", marked)
    assert handler.type == "type"
    assert handler.arguments(JOB, None) == ()


def test_options_are_the_defaults_unless_given() -> None:
    assert Handler("type", both).options == HandlerOptions()
    options = HandlerOptions(slots=3)
    assert Handler("type", both, options).options is options


def test_one_function_can_handle_several_types() -> None:
    first: Handler[Any, Any] = Handler("first", both)
    second: Handler[Any, Any] = Handler("second", first)
    assert (first.type, second.type) == ("first", "second")
    assert second.function is both
    assert second.kind == "coroutine"


def test_a_command_handler_says_so() -> None:
    assert Handler("type", both, kind="command").kind == "command"


def test_a_decorator_keeps_the_handler_and_gives_it_back() -> None:
    kept: list[Handler[Any, Any]] = []
    decorate: Registration = registration("thumbnail", HandlerOptions(slots=2), kept.append)
    handler = decorate(both)
    assert kept == [handler]
    assert (handler.type, handler.options.slots) == ("thumbnail", 2)


def test_a_type_that_no_job_can_have_is_refused() -> None:
    not_a_type: Any = 1.5
    with pytest.raises(InvalidJob, match=r"type 1\.5: a float; allowed are str"):
        Handler(not_a_type, both)


# what is refused


async def awaits_nothing(running: blocking_module.BlockingJob) -> None:
    running.progress(1)


def job_in_the_middle(a: int, job: RunningJob, b: int) -> None: ...
def positional_only(a: int, /, b: int) -> None: ...
def named_like_an_option(a: int, delay: int) -> None: ...
def keyword_job(a: int, *, job: RunningJob) -> None: ...
def no_payloads(a: int, b: contextlib.ExitStack) -> None: ...
def job_last(args: int, job: RunningJob) -> None: ...
def two_jobs(job: RunningJob, other: RunningJob) -> None: ...
def variadic(*args: int) -> None: ...
def a_method(self: Any, args: int) -> None: ...
def unresolved(args: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def broken(args: "list[") -> None: ...  # type: ignore[valid-type]  # noqa: F722
def no_payload(args: contextlib.ExitStack) -> None: ...
def payload_called_job(job: Thumbnail) -> None: ...


def generator(args: int) -> Iterator[int]:
    yield args


async def async_generator(args: int) -> AsyncIterator[int]:
    yield args


def wraps_itself(args: int) -> None: ...


wraps_itself.__wrapped__ = wraps_itself  # type: ignore[attr-defined]


@functools.wraps(both)
def wraps_a_coroutine(*args: Any) -> Any:
    return both(*args)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (job_last, "it takes args and job; of several parameters the first"),
        (job_in_the_middle, "it takes a and job and b; of several parameters the first, and only it"),
        (two_jobs, "it takes job and other; of several parameters the first, and only it"),
        (positional_only, "parameter a is positional-only; several are given by keyword"),
        (named_like_an_option, "enqueue has an option delay; call the parameter otherwise"),
        (keyword_job, "parameter job is keyword-only; only the first parameter gets the job"),
        (no_payloads, "parameter b: ExitStack is nothing that a job's data can be: "),
        (variadic, "it takes *args; name its parameters"),
        (a_method, "it takes self; register the bound method of an object"),
        (Scaler.method, "it takes self; register the bound method of an object"),
        (unresolved, "annotation 'Nowhere' of parameter args cannot be resolved: name 'Nowhere' is not defined"),
        (broken, "of parameter args cannot be resolved: "),
        (no_payload, "parameter args: ExitStack is nothing that a job's data can be: "),
        (payload_called_job, "parameter job is annotated Thumbnail but gets the job; call it args"),
        (awaits_nothing, "it is a coroutine function, which gets a RunningJob; a BlockingJob is for plain functions"),
        (generator, "it is a generator; a handler returns its result and does not yield"),
        (async_generator, "it is a generator"),
        (functools.partial(generator, 3), "it is a generator"),
        (Generating(), "it is a generator"),
        (wraps_a_coroutine, "a plain function wraps a coroutine function; make the wrapper `async def`"),
        (wraps_itself, "its parameters cannot be told"),
        (Scaler, "it is a class; register an object with a __call__, or a function"),
        (Thumbnail, "it is a class"),
        (ARGS, "a Thumbnail cannot be called"),
        (None, "a NoneType cannot be called"),
        (max, "its parameters cannot be told; wrap it into a function"),
        (math.hypot, "its parameters cannot be told"),
    ],
)
def test_what_cannot_be_a_handler_is_refused_when_it_is_registered(function: Any, why: str) -> None:
    assert why in refusal(function)


def test_a_refusal_names_the_function() -> None:
    assert refusal(generator).startswith(f"{__name__}.generator cannot be a handler: ")


# annotations of functions inside of functions


def test_classes_of_the_functions_around_are_found() -> None:
    @dataclass
    class Outer:
        n: int

    def inside() -> Handler[Any, Any]:
        @dataclass
        class Inner:
            outers: list[Outer]

        def handle(job: RunningJob, args: list[Inner]) -> int:
            return args[0].outers[0].n

        return Handler("type", handle)

    assert called(inside(), [{"outers": [{"n": 7}]}]) == 7


def test_a_class_that_the_function_uses_is_found_after_the_function_around_has_returned() -> None:
    def make() -> Callable[..., Any]:
        @dataclass
        class Gone:
            n: int

        def handle(args: Gone) -> bool:
            return isinstance(args, Gone)

        return handle

    assert called(Handler("type", make()), {"n": 1}) is True


def test_a_class_that_is_gone_is_named() -> None:
    def make() -> Callable[..., Any]:
        @dataclass
        class Gone:
            n: int

        def handle(args: Gone) -> None: ...

        return handle

    assert "annotation 'Gone' of parameter args cannot be resolved" in refusal(make())


def test_a_running_function_of_the_same_name_in_another_module_lends_no_names() -> None:
    class Outer:
        pass

    elsewhere: dict[str, Any] = {}
    exec("def handle(args: Outer): ...", elsewhere)
    handle = elsewhere["handle"]
    here = test_a_running_function_of_the_same_name_in_another_module_lends_no_names
    handle.__qualname__ = f"{here.__qualname__}.<locals>.handle"
    assert "annotation 'Outer' of parameter args cannot be resolved" in refusal(handle)


# types: what mypy makes of this module is half of these tests


def enqueue(handler: Handler[ArgsT, ResultT], args: ArgsT) -> ResultT | None:
    """Stand for what takes a handler and its arguments; return what the handler would."""
    handler.codec.encode(args)
    return None


def test_a_type_checker_knows_what_a_handler_takes_and_returns() -> None:
    decorate: Registration = registration("type", HandlerOptions(), lambda handler: None)

    @decorate
    async def with_both(job: RunningJob, args: Thumbnail) -> dict[str, int]: ...  # type: ignore[empty-body]

    @decorate
    async def with_args(args: Thumbnail) -> int: ...  # type: ignore[empty-body]

    @decorate
    async def with_job(job: RunningJob) -> str: ...  # type: ignore[empty-body]

    @decorate
    def in_a_thread(job: RunningJob, args: Thumbnail) -> str: ...  # type: ignore[empty-body]

    @decorate
    def blocking(job: BlockingJob) -> float: ...  # type: ignore[empty-body]

    @decorate
    def with_a_list(args: list[int]) -> None: ...

    assert_type(with_both, TypedHandler[[Thumbnail], Thumbnail, dict[str, int]])
    assert_type(with_args, TypedHandler[[Thumbnail], Thumbnail, int])
    assert_type(with_job, TypedHandler[[], object, str])
    assert_type(in_a_thread, TypedHandler[[Thumbnail], Thumbnail, str])
    assert_type(blocking, TypedHandler[[], object, float])
    assert_type(with_a_list, TypedHandler[[list[int]], list[int], None])
    wider: list[Handler[Any, Any]] = [with_both, with_job]
    assert all(type(handler) is TypedHandler for handler in wider)
    assert_type(enqueue(with_args, ARGS), int | None)
    enqueue(with_job, {"any": "thing"})
    with pytest.raises(InvalidJob):
        enqueue(with_both, 3)  # type: ignore[misc]
    with pytest.raises(InvalidJob):
        enqueue(with_a_list, ["3"])  # type: ignore[misc]
