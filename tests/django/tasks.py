"""Tasks as Django's own tests of backends have them, and some that a worker needs."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import asyncio
from typing import Any

from django.db import connections, transaction

from jobs_service import Discard, outbox
from tests.django.support import FRAMEWORK

task = FRAMEWORK.task
USED: list[Any] = []
"""Connections of tasks."""


class Declined(Exception):
    """An error of an application."""


@task()
def nothing(*args: Any, **kwargs: Any) -> None:
    """Return nothing."""


@task
async def nothing_async(*args: Any, **kwargs: Any) -> None:
    await asyncio.sleep(0)


def hidden() -> None:
    """No worker finds the task of this function."""


renamed = task()(hidden)


@task()
def answer() -> int:
    return 42


@task()
def echo(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


@task()
def failing(kind: str) -> None:
    errors = {each.__name__: each for each in (ValueError, SystemExit, KeyboardInterrupt, Declined)}
    raise errors[kind](f"This task failed due to {kind}\nin two lines")


@task()
def complex_exception() -> None:
    raise ValueError(ValueError("This task failed"))


@task()
def given_up() -> None:
    try:
        raise Declined("no money")
    except Declined as error:
        raise Discard("never again") from error


@task()
def no_json() -> object:
    return object()


@task(takes_context=True)
def of_context(context: Any, attempt: int) -> list[Any]:
    assert isinstance(context, FRAMEWORK.TaskContext)
    assert context.attempt == attempt
    return [context.task_result.id, str(context.job.id), context.task_result.status]


@task(takes_context=True)
def second_time(context: Any) -> int:
    if context.attempt == 1:
        raise Declined("not yet")
    return int(context.attempt)


@task(takes_context=True)
def until_stopped(context: Any) -> None:
    assert context.job.wait_for_stop(60)


@task(takes_context=True)
def once(context: Any, number: int) -> None:
    with transaction.atomic(using="own"), connections["own"].cursor() as cursor:
        if outbox.once(connections["own"], context.job):
            cursor.execute("insert into effects (number) values (%s)", [number])
    USED.append(connections["own"])
