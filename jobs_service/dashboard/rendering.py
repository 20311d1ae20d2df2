"""Renders templates as HTML; all values that a template inserts are escaped."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

import jobs_service
from jobs_service import durations
from jobs_service.dashboard import texts
from jobs_service.dashboard.visit import Visit
from jobs_service.names import shown
from jobs_service.status import Status

HERE: Final = Path(__file__).parent

SECURITY: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Headers of every page: no content of other hosts, only scripts of this server, no framing."""

MENU: Final = (
    ("/", "Overview"),
    ("/failures", "Failures"),
    ("/processes", "Processes"),
    ("/periodic", "Periodic"),
    ("/supervision", "Supervisor"),
    ("/health", "Health"),
    ("/bulk", "Bulk actions"),
)


@lru_cache(maxsize=1)
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": texts.count,
        "many": texts.many,
        "duration": texts.duration,
        "period": durations.typed,
        "size": texts.size,
        "shown": shown,
        "brief": texts.brief,
        "when": when,
    }
    environment.globals |= {"states": [each.value for each in Status], "version": jobs_service.__version__}
    return environment


def when(moment: datetime | float | None, since: float | None = None) -> Markup:
    """Return a time as HTML, which the script may rewrite in the browser's time zone.

    Args:
        moment: an aware time, or seconds since the epoch.
        since: the present time in seconds since the epoch, for a text relative to it: "5 s ago", "in 2 min".
    """
    time = texts.at(moment) if isinstance(moment, int | float) else moment
    if time is None:
        return Markup('<span class="quiet">never</span>')
    time = time.astimezone(UTC)
    exact = time.strftime("%Y-%m-%d %H:%M:%S UTC")
    iso = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if since is None:
        return Markup('<time datetime="{}" data-time>{}</time>').format(iso, exact)
    seconds = since - time.timestamp()
    told = f"{texts.duration(seconds)} ago" if seconds >= 0 else f"in {texts.duration(-seconds)}"
    if abs(seconds) < 1:
        told = "now"
    return Markup('<time datetime="{}" title="{}" data-ago>{}</time>').format(iso, exact, told)


def page(
    visit: Visit,
    template: str,
    context: Mapping[str, Any],
    *,
    status: int = 200,
    live: Mapping[str, Any] | None = None,
) -> HTMLResponse:
    """Return a page.

    Args:
        visit: the request.
        template: the file of its template.
        context: the variables of the template.
        status: the HTTP status.
        live: the changes that the page follows, as parameters of /live; None for none.
    """
    html = (
        _templates()
        .get_template(template)
        .render(
            visit=visit,
            url=visit.url,
            menu=MENU,
            environment=visit.environment,
            live_url=None if live is None else visit.url("/live", **live),
            said=SAID.get(visit.query.get("said", "")),
            **context,
        )
    )
    return HTMLResponse(html, status, headers={**SECURITY, "Cache-Control": "no-store", "Vary": "Cookie"})


SAID: Final = {
    "resubmitted": "The job runs again: at once, or after its present run.",
    "canceled": "The job is running. Its worker was asked to end it.",
    "removed": "The job is removed.",
    "ended": "The job has ended already: it was left alone, with its result.",
    "meanwhile": "Something has happened to the job meanwhile, so nothing was done. This is how it is now.",
    "added": "The job is added.",
    "paused": "The type is paused: nobody takes its jobs until it is resumed. What runs goes on.",
    "resumed": "The type is resumed: its jobs are taken again.",
    "changed": "The type is changed.",
    "ticked": "A job is added; it runs as soon as a slot is free.",
    "stopping": "The bulk action was asked to end; what it has done stays done.",
    "process-quiet": "The process was asked to take no more jobs; what runs goes on.",
    "process-resume": "The process was asked to take jobs again.",
    "process-stop": "The process was asked to end. Its running jobs get their grace.",
}
"""The sentence that a page shows after an action. The address has the key only, so that a forged link cannot put a
sentence of its own on the page."""
