"""The end of a run: its write to the store, and its log event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from jobs_service.errors import Retry
from jobs_service.layer import running_jobs
from jobs_service.log import EventLog
from jobs_service.model import JobError, Outcome, RunningJob
from jobs_service.redaction import Redaction
from jobs_service.runner.error_description import brief, traceback_of

_MOST_LOGGED: Final = 300
"""Most characters of an error in a log event."""


class RunEnd(NamedTuple):
    """The pending write of an ended run.

    Attributes:
        operation: an operation of the layer, called with unit, place, lock and the arguments; None to write nothing.
        arguments: see `operation`.
        size: approximate bytes that it adds to the record.
        error: the run's failure, for the log; None for none.
        raised: the exception that `error` describes.
        retry_in: seconds until the next attempt; None for none.
        instead: whether it replaces an end that the store refused.
    """

    operation: Callable[..., Any] | None
    arguments: tuple[Any, ...] = ()
    size: int = 0
    error: JobError | None = None
    raised: BaseException | None = None
    retry_in: float | None = None
    instead: bool = False

    def outcome(self, written: bool) -> str:
        """Return the job's outcome in a word.

        Args:
            written: whether its handler has ended it itself.
        """
        if self.operation is running_jobs.finish and not written:
            outcome: Outcome = self.arguments[1]
            return outcome.value
        if written or self.operation is None:
            return "ended by its handler" if written else "taken over"
        return "retried" if self.operation is running_jobs.crash else "given back"

    def log_to(self, log: EventLog, job: RunningJob, redaction: Redaction, seconds: float = 0.0) -> None:
        """Log the end of the run.

        Args:
            log: the handler's log.
            job: the job of the run.
            redaction: rules that redact the event.
            seconds: duration of the run.
        """
        if self.error is None:
            if self.operation is running_jobs.finish and self.arguments[1] is Outcome.SUCCEEDED:
                log.debug("job_succeeded", id=job.id, attempt=job.attempts, seconds=round(seconds, 3))
            return
        fields: dict[str, Any] = {"id": job.id, "attempt": job.attempts, "error": self._brief(job, redaction)}
        if self.retry_in is not None:
            fields["retry_in"] = round(self.retry_in, 3)
        if self.operation is running_jobs.finish:
            fields["attempt"] += self.arguments[2].attempts  # -1 where the job had no attempts left, and did not run
            log.warning("job_failed", **fields)
        elif self.operation is running_jobs.stop:
            log.warning("arguments_refused", **fields)
        elif isinstance(self.raised, Retry):  # the handler has asked for it, so it is no warning
            log.info("job_retrying", **fields)
        else:
            log.warning("job_crashed", **fields)

    def log_dropped(self, log: EventLog, job: RunningJob, redaction: Redaction) -> None:
        """Log an error or a result that is lost because the handler ended its job earlier."""
        if self.raised is not None and self.error is not None:
            error = self._brief(job, redaction)
            log.error("handler_failed_after_end", id=job.id, error=error, **traceback_of(self.raised, job, redaction))
        elif self.operation is running_jobs.finish and self.size:
            log.warning("result_not_stored", id=job.id)

    def _brief(self, job: RunningJob, redaction: Redaction) -> str:
        error = redaction.error(self.error, job)
        assert error is not None
        return brief(error, _MOST_LOGGED)


NO_END: Final = RunEnd(None)
