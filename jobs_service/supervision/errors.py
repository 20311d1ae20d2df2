"""The errors of the supervision floor. Applications meet only SupervisorFailed, which is among the public errors."""

from __future__ import annotations

from jobs_service.errors import JobsError


class ActorStopped(JobsError):
    """The process has ended, or was never started, so it takes no message and no child. Chains the cause of its end."""


class UnknownMessage(JobsError):
    """An actor got an unknown message: a bug of the sender, and the end of the actor."""


class Killed(JobsError):
    """A task was canceled from outside, and not by its supervisor."""
