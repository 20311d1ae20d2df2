"""Error pages: the reason, and the next step for the user."""

from __future__ import annotations

from starlette.responses import Response

from jobs_service.dashboard import texts
from jobs_service.dashboard.rendering import page
from jobs_service.dashboard.visit import Visit
from jobs_service.errors import (
    InvalidJob,
    JobExists,
    JobNotFound,
    JobsError,
    JobTooLarge,
    NoTypeTimeout,
    ProcessGone,
    RecordDamaged,
    ServiceClosed,
    StoreFull,
    StoreUnavailable,
)

_TITLES = (
    (
        JobNotFound,
        "There is no such job",
        "It may have been removed, or kept long enough. Look at its type's jobs.",
    ),
    (NoTypeTimeout, "There is no such type", "Make it first: jobs-service types set TYPE SECONDS."),
    (ProcessGone, "This process is not there any more", "Go back to the page of processes."),
    (JobExists, "There is such a job already", "Go back, and give it another id."),
    (JobTooLarge, "The job is too large", "Go back, and give it less data."),
    (InvalidJob, "That cannot be", "Go back, and correct it."),
    (
        RecordDamaged,
        "The job cannot be read",
        "It can be removed all the same: jobs-service remove TYPE ID --force.",
    ),
    (StoreFull, "The store is full", "Make room where the store is, or remove jobs that nobody needs."),
    (StoreUnavailable, "The store cannot be reached", "Try it again; the page of health says more."),
    (ServiceClosed, "The server is ending", "Try it again when it is back."),
)


def problem_page(visit: Visit, status: int, title: str, text: str, hint: str = "") -> Response:
    """Return a page with an error in one line and the next step for the user.

    Args:
        visit: the request.
        status: the HTTP status.
        title, text: the error.
        hint: the next step.
    """
    context = {"title": title, "text": texts.brief(text, 2000), "hint": hint}
    return page(visit, "problem.html", context, status=status)


def error_page(visit: Visit, error: JobsError) -> Response:
    """Return the page for an error of the service."""
    for kind, title, hint in _TITLES:
        if isinstance(error, kind):
            return problem_page(visit, error.http_status, title, str(error), hint)
    return problem_page(visit, error.http_status, "That did not work", str(error), "The log of the server says more.")
