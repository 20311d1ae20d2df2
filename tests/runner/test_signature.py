"""What a handler's function is called with, which functions are refused, and how their annotations are resolved."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from jobs_service.model import Job, RunningJob
from jobs_service.runner import functions as blocking_module
from jobs_service.runner.handler import Handler
from tests.runner.example_functions import (
    ARGS,
    JOB,
    PAYLOAD,
    Blocking,
    Generating,
    Scaler,
    Thumbnail,
    both,
    called,
    nothing,
    only_args,
    only_job,
    plain,
    refusal,
)

if TYPE_CHECKING:
    from jobs_service.model import RunningJob as Hidden
    from jobs_service.runner.functions import BlockingJob


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


def test_a_decorated_function_keeps_its_parameters() -> None:
    def logged(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return wrapper

    handler: Handler[Any, Any] = Handler("type", logged(both))
    assert handler.kind == "coroutine"
    assert called(handler, PAYLOAD) == (JOB, ARGS)


# what is refused


async def awaits_nothing(running: blocking_module.BlockingJob) -> None:
    running.progress(1)


def job_in_the_middle(a: int, job: RunningJob, b: int) -> None: ...
def positional_only(a: int, /, b: int) -> None: ...
def keyword_job(a: int, *, job: RunningJob) -> None: ...
def no_payloads(a: int, b: contextlib.ExitStack) -> None: ...
def job_last(args: int, job: RunningJob) -> None: ...
def two_jobs(job: RunningJob, other: RunningJob) -> None: ...
def variadic(*args: int) -> None: ...
def keywords(job: RunningJob, **options: Any) -> None: ...
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
        (keyword_job, "parameter job is keyword-only; only the first parameter gets the job"),
        (no_payloads, "parameter b: ExitStack is nothing that a job's data can be: "),
        (variadic, "it takes *args; name its parameters"),
        (keywords, "it takes **options, of which a job has nothing; name its parameters"),
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
