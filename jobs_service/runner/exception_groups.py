"""What a group of exceptions says about a run: a handler may use task groups, and raise inside of them.

Floor: runner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from jobs_service.errors import Discard, Retry, Snooze, in_one_line, kind_of

_MOST_SHOWN: Final = 5
_MOST_OF_ONE: Final = 200


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, or those that are in a group and in its groups."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error


def decisive(error: BaseException) -> BaseException:
    """Return the exception that says what becomes of the job.

    That is the only one in a group. Of several: a Discard, because what is wrong for good does not become right by
    another attempt; else the errors that nobody has raised on purpose: one of them alone, or the group; else the Retry,
    or the Snooze, that asks for the longest time.
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
        return max(retries, key=lambda each: -1.0 if each.after is None else each.after)
    snoozes = [each for each in several if isinstance(each, Snooze)]
    return max(snoozes, key=lambda each: each.seconds) if snoozes else several[0]


def message_of(error: BaseException) -> str:
    """Return what an exception says; of a group what those say that are in it."""
    if not isinstance(error, BaseExceptionGroup):
        return _text(error)
    several = [*leaves(error)]
    said = [in_one_line(f"{kind_of(each)}: {_text(each)}", _MOST_OF_ONE) for each in several[:_MOST_SHOWN]]
    if len(several) > _MOST_SHOWN:
        said.append("...")
    return f"{len(several)} errors: {'; '.join(said)}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # what an exception of the user's says of itself is the user's code
        return "(its message cannot be shown)"
