"""Errors as they are stored with a job, and in one line."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any, Final

from jobs_service.errors import Discard, InvalidJob, Retry, in_one_line, kind_of
from jobs_service.model import Job, JobError
from jobs_service.redaction import Redaction
from jobs_service.runner.exception_groups import message_of

_MOST_OF_A_MESSAGE: Final = 1000
_FRAMES: Final = 6
_MOST_OF_A_TRACEBACK: Final = 3000
_RUNNER: Final = "jobs_service.runner."


def describe(error: BaseException) -> JobError:
    """Return an error as it is stored: its class, its message and the end of its traceback."""
    message = message_of(error)[:_MOST_OF_A_MESSAGE]
    where = ""
    if error.__traceback__ is not None and not isinstance(error, Retry | Discard | InvalidJob):
        try:
            frames = _from_the_handler_on(error.__traceback__)
            lines = traceback.format_exception(type(error), error, frames, limit=-_FRAMES)
            where = "".join(lines)[-_MOST_OF_A_TRACEBACK:]
        except Exception:
            where = ""
    return JobError(kind_of(error), _encodable(message), _encodable(where))


def _from_the_handler_on(frames: TracebackType) -> TracebackType:
    """Return the frames without those of the runner in front; all of them if the handler has none."""
    own: TracebackType | None = frames
    while own is not None and own.tb_frame.f_globals.get("__name__", "").startswith(_RUNNER):
        own = own.tb_next
    return own or frames


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()


def traceback_of(error: BaseException, job: Job, redaction: Redaction) -> dict[str, Any]:
    """Return the field of a log event that has an error's traceback, without what is secret of its job."""
    if not redaction:
        return {"exc_info": error}
    hidden = redaction.error(JobError("", "", "".join(traceback.format_exception(error))), job)
    assert hidden is not None
    return {"stack": hidden.traceback.rstrip()}


def brief(error: JobError, most: int) -> str:
    """Return an error in one line of at most so many characters."""
    return in_one_line(f"{error.type}: {error.message}", most)
