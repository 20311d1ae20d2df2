"""The errors of the supervision floor. Applications meet only SupervisorFailed, which is among the public errors."""

from __future__ import annotations

from jobs_service.errors import JobsError


class ActorStopped(JobsError):
    """It has ended, or was never started, and so takes no message and no child. The cause of its end is chained."""


class UnknownMessage(JobsError):
    """An actor got a message that it does not know: a bug of the sender, and the end of the actor."""


class Killed(JobsError):
    """A task was canceled from outside, by somebody other than its supervisor."""
