"""Finds the exception of a group that decides about a run: a handler's task groups may raise several."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Final

from jobs_service.errors import ANOTHER_ATTEMPT, Discard, InvalidJob, Retry, Snooze, in_one_line, kind_of, wait_of

_MOST_SHOWN: Final = 5
_MOST_OF_ONE: Final = 200


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception; of a group, the exceptions in it and in its inner groups."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error


def decisive(error: BaseException) -> BaseException:
    """Return the exception that decides about the job.

    The only exception of a group decides. Of several, the first of these does: a Discard, because another attempt would
    be in vain; the errors that are no requests to the runner, a single one by itself or else the group; the Retry, or
    else the Snooze, with the longest time.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    several = [*leaves(error)]
    for each in several:
        if isinstance(each, Discard):
            return each
    unasked = [each for each in several if not isinstance(each, Retry | Snooze | asyncio.CancelledError)]
    if len(unasked) == 1:
        return unasked[0]
    if unasked:
        return error
    retries = [each for each in several if isinstance(each, Retry)]
    if retries:
        return max(retries, key=_asked)
    snoozes = [each for each in several if isinstance(each, Snooze)]
    return max(snoozes, key=_asked) if snoozes else several[0]


def _asked(request: Retry | Snooze) -> float:
    try:
        seconds = wait_of(request)
    except InvalidJob:  # an application has set it itself: whoever decides about the run says so
        return math.inf
    return -1.0 if seconds is None else seconds


def message_of(error: BaseException) -> str:
    """Return the message of an exception, or the messages of a group's exceptions."""
    if not isinstance(error, BaseExceptionGroup):
        return _text(error)
    several = [*leaves(error)]
    messages = [in_one_line(f"{kind_of(each)}: {_text(each)}", _MOST_OF_ONE) for each in several[:_MOST_SHOWN]]
    if len(several) > _MOST_SHOWN:
        messages.append("...")
    return f"{len(several)} errors: {'; '.join(messages)}"


def cause_of(error: BaseException) -> BaseException | None:
    """Return the error behind a handler's Retry or Discard: its cause, or the exception being handled."""
    if not isinstance(error, Retry | Discard):
        return None
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    # That a task was canceled beside one that failed is no reason of its own.
    return None if isinstance(error.__context__, asyncio.CancelledError) else error.__context__


def _text(error: BaseException) -> str:
    try:
        text = str(error)
        cause = cause_of(error)
        if cause is None:
            return text
        why = f"{kind_of(cause)}: {message_of(cause)}"
        return why if text == ANOTHER_ATTEMPT else f"{text}: {why}"
    except Exception:  # __str__ of a user's exception is the user's code
        return "(its message cannot be shown)"
