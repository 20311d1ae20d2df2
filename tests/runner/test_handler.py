"""Handlers: arguments by keyword and defaults, options, names, and what a type checker knows of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, assert_type

import pytest

from jobs_service.errors import InvalidJob, InvalidSettings
from jobs_service.model import UNSET, RunningJob
from jobs_service.model.enqueueing import ArgsT, ResultT
from jobs_service.runner.handler import Handler, Registration, TypedHandler, registration
from jobs_service.runner.options import HandlerOptions
from jobs_service.service import JobsService
from tests.runner.example_functions import ARGS, JOB, PAYLOAD, Thumbnail, both, called, plain

if TYPE_CHECKING:
    from jobs_service.runner.functions import BlockingJob


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
        ("ada", "arguments by keyword, or a dict of them, should be given (to, subject, parts); it is 'ada'"),
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


def test_a_type_that_no_job_can_have_is_refused() -> None:
    not_a_type: Any = 1.5
    with pytest.raises(InvalidJob, match=r"type 1\.5: a float; allowed are str"):
        Handler(not_a_type, both)


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
