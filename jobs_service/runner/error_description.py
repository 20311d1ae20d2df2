"""Descriptions of errors: as stored with a job, and in one line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final

from jobs_service.errors import Discard, InvalidJob, Retry, in_one_line, kind_of
from jobs_service.model import Job, JobError
from jobs_service.redaction import Redaction
from jobs_service.runner.exception_groups import cause_of, message_of

_MOST_OF_A_MESSAGE: Final = 1000
_FRAMES: Final = 6
_MOST_OF_A_TRACEBACK: Final = 3000
_MOST_OF_A_LINE: Final = 500
"""Most characters in a traceback for a message, and for all notes of an exception."""
_RUNNER: Final = "jobs_service.runner."


def describe(error: BaseException) -> JobError:
    """Return the stored form of an error: its class, its message and the end of its or its cause's traceback."""
    message = message_of(error)[:_MOST_OF_A_MESSAGE]
    # The raising line of a request to the runner means nothing; the line of its cause does.
    told = cause_of(error) if isinstance(error, Retry | Discard) else error
    where = ""
    if told is not None and told.__traceback__ is not None and not isinstance(told, InvalidJob):
        try:
            frames = _from_the_handler_on(told.__traceback__)
            shown = traceback.TracebackException(type(told), told, frames, limit=-_FRAMES)
            where = "".join(_lines(shown))[-_MOST_OF_A_TRACEBACK:]
        except Exception:
            where = ""
    return JobError(kind_of(error), _encodable(message), _encodable(where))


def _from_the_handler_on(frames: TracebackType) -> TracebackType:
    """Return the frames without the runner's frames in front; all of them if the handler has none."""
    own: TracebackType | None = frames
    while own is not None and own.tb_frame.f_globals.get("__name__", "").startswith(_RUNNER):
        own = own.tb_next
    return own or frames


def _lines(shown: traceback.TracebackException) -> Iterator[str]:
    """Yield a traceback with its messages and notes cut, so that they do not push out the frames."""
    left: list[traceback.TracebackException | None] = [shown]
    while left:
        if (each := left.pop()) is None:
            continue
        notes = getattr(each, "__notes__", None)
        if isinstance(notes, Sequence) and notes:
            each.__notes__ = [_cut("\n".join(map(str, notes)))]
        left += [each.__cause__, each.__context__, *(each.exceptions or ())]
    for line in shown.format():
        yield _cut(line)


def _cut(text: str) -> str:
    end = "\n" if text.endswith("\n") else ""
    return text if len(text) <= _MOST_OF_A_LINE else f"{text[:_MOST_OF_A_LINE]}…{end}"


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()


def traceback_of(error: BaseException, job: Job, redaction: Redaction) -> dict[str, Any]:
    """Return an error's traceback as a field of a log event, redacted by the rules of its job."""
    if not redaction:
        return {"exc_info": error}
    hidden = redaction.error(JobError("", "", "".join(traceback.format_exception(error))), job)
    assert hidden is not None
    return {"stack": hidden.traceback.rstrip()}


def brief(error: JobError, most: int) -> str:
    """Return an error in one line of at most so many characters."""
    return in_one_line(f"{error.type}: {error.message}", most)
