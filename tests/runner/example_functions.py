"""Functions that are made handlers in tests, and how to call and refuse such."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from jobs_service.errors import InvalidSettings
from jobs_service.model import RunningJob
from jobs_service.runner.handler import Handler

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
