"""Renders pages: templates, the texts in them, and pages for errors; all values that a template inserts are escaped."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

import jobs_service
from jobs_service import durations
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
from jobs_service.model import JobError, Progress
from jobs_service.model.job import Status
from jobs_service.names import compact, one_line, printable, shown

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
    ("/periodic", "Periodic"),
    ("/system", "System"),
)

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
    "schedule-pause": "The schedule does not tick until it is resumed.",
    "schedule-resume": "The schedule ticks again.",
    "schedule-remove": "The schedule is removed; the jobs that it has added stay.",
    "ticked": "A job is added; it runs as soon as a slot is free.",
    "stopping": "The bulk action was asked to end; what it has done stays done.",
    "picked": "Done. A job to which something had happened meanwhile was left alone.",
    "edited": "The job is changed.",
    "process-quiet": "The process was asked to take no more jobs; what runs goes on.",
    "process-resume": "The process was asked to take jobs again.",
    "process-stop": "The process was asked to end. Its running jobs get their grace.",
}
"""The sentence that a page shows after an action. The address has the key only, so that a forged link cannot put a
sentence of its own on the page."""

_TITLES = (
    (
        JobNotFound,
        "There is no such job",
        "It may have been removed, or kept long enough. Look at its type's jobs.",
    ),
    (NoTypeTimeout, "There is no such type", "Make it first: jobs-service types set TYPE SECONDS."),
    (ProcessGone, "This process is not there any more", "Go back to the page of the system."),
    (JobExists, "There is such a job already", "Go back, and give it another id."),
    (JobTooLarge, "The job is too large", "Go back, and give it less data."),
    (InvalidJob, "That cannot be", "Go back, and correct it."),
    (
        RecordDamaged,
        "The job cannot be read",
        "It can be removed all the same: jobs-service remove TYPE ID --force.",
    ),
    (StoreFull, "The store is full", "Make room where the store is, or remove jobs that nobody needs."),
    (StoreUnavailable, "The store cannot be reached", "Try it again; the page of the system says more."),
    (ServiceClosed, "The server is ending", "Try it again when it is back."),
)


# Pages


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
            badges=(0, 0) if visit.shared is None else visit.shared.known_problems(),
            live_url=None if live is None else visit.url("/live", **live),
            said=SAID.get(visit.query.get("said", "")),
            **context,
        )
    )
    return HTMLResponse(html, status, headers={**SECURITY, "Cache-Control": "no-store", "Vary": "Cookie"})


def problem_page(visit: Visit, status: int, title: str, text: str, hint: str = "") -> Response:
    """Return a page with an error in one line and the next step for the user.

    Args:
        visit: the request.
        status: the HTTP status.
        title, text: the error.
        hint: the next step.
    """
    context = {"title": title, "text": brief(text, 2000), "hint": hint}
    return page(visit, "problem.html", context, status=status)


def error_page(visit: Visit, error: JobsError) -> Response:
    """Return the page for an error of the service."""
    for kind, title, hint in _TITLES:
        if isinstance(error, kind):
            return problem_page(visit, error.http_status, title, str(error), hint)
    return problem_page(visit, error.http_status, "That did not work", str(error), "The log of the server says more.")


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
        "count": count,
        "many": many,
        "duration": duration,
        "period": durations.typed,
        "size": size,
        "shown": shown,
        "brief": brief,
        "when": when,
        "clock": clock,
        "schedule_words": schedule_words,
        "roughly": roughly,
    }
    environment.globals |= {"states": [each.value for each in Status], "version": jobs_service.__version__}
    return environment


def when(moment: datetime | float | None, now: float | None = None) -> Markup:
    """Return a time as HTML, which the script may rewrite in the browser's time zone.

    Args:
        moment: an aware time, or seconds since the epoch.
        now: the present time in seconds since the epoch, for a text relative to it: "5 s ago", "in 2 min".
    """
    time = at(moment) if isinstance(moment, int | float) else moment
    if time is None:
        return Markup('<span class="faint">never</span>')
    exact = time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if now is None:
        return _time(time, exact, exact, "data-time")
    seconds = now - time.timestamp()
    told = f"{roughly(seconds)}{NBSP}ago" if seconds >= 0 else f"in{NBSP}{roughly(-seconds)}"
    return _time(time, exact, "now" if abs(seconds) < 1 else told, "data-ago")


def clock(moment: float | None, form: str = "%H:%M:%S") -> Markup:
    """Return the time of day of a moment in seconds since the epoch, as `when`; `form` is for strftime."""
    time = at(moment)
    if time is None:
        return Markup("")
    kind = "data-date" if "%d" in form else "data-minute" if "%S" not in form else "data-clock"
    return _time(time, time.strftime("%Y-%m-%d %H:%M:%S UTC"), time.strftime(form), kind)


def _time(time: datetime, exact: str, told: str, kind: str) -> Markup:
    iso = time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}" {}>{}</time>').format(iso, exact, kind, told)


# Texts


NBSP: Final = "\u00a0"
"""Between a number and its unit, which never part."""


def count(number: int) -> str:
    """Return a number with commas between thousands."""
    return f"{number:,}"


def many(number: int, noun: str) -> str:
    """Return a number with a noun, in the plural unless it is 1."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """Return a duration in its two greatest units: 1 d 3 h, 12 min 5 s, 3.2 s, 40 ms; "" for None."""
    if seconds is None:
        return ""
    seconds = max(seconds, 0.0)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}{NBSP}ms"
    if seconds < 59.95:
        text = f"{seconds:.1f}" if seconds < 9.95 else f"{seconds:.0f}"
        return f"{text.removesuffix('.0')}{NBSP}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    for great, unit, small, part in (
        (days, "d", hours, "h"),
        (hours, "h", minutes, "min"),
        (minutes, "min", rest, "s"),
    ):
        if great:
            more = f"{NBSP}{small}{NBSP}{part}" if small else ""
            return f"{count(great)}{NBSP}{unit}{more}"
    raise AssertionError


def roughly(seconds: float) -> str:
    """Return a duration in its greatest unit: 2 d, 5 h, 12 min, 36 s."""
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{count(int(seconds // length))}{NBSP}{unit}"
    return f"{int(seconds)}{NBSP}s"


def at(seconds: float | None) -> datetime | None:
    """Return the time for seconds since the epoch; None for None, and for seconds outside the calendar."""
    try:
        if seconds is None or not math.isfinite(seconds):
            return None
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def size(number: int) -> str:
    """Return a size in bytes for people: 512 B, 20 kB, 1.2 MB, 3.4 GB."""
    if number < 1000:
        return f"{number}{NBSP}B"
    value = float(number)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.5 or unit == "TB":
            break
    return f"{value:.1f}{NBSP}{unit}" if value < 9.95 else f"{value:.0f}{NBSP}{unit}"


def brief(text: str, most: int = 120) -> str:
    """Return a text on one line, cut to a number of characters."""
    return one_line(text, most)


def lines(text: str) -> str:
    """Return a text of several lines with its control characters escaped."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.splitlines())


def json_text(value: Any) -> str:
    """Return a JSON value on several lines; long integers stay exact."""
    return lines(json.dumps(value, ensure_ascii=False, indent=2))


def on_one_line(value: Any, most: int = 160) -> str:
    """Return a JSON value on one line, cut to a number of characters; "" for None."""
    return "" if value is None else brief(compact(value), most)


_DAYS: Final = ("Sundays", "Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays")


def schedule_words(written: str) -> str:
    """Return the schedule of a periodic type as people say it; "" for a cron expression that is not a usual one.

    Args:
        written: an interval, as `every 1h30m`, or a cron expression and its time zone.
    """
    if written.startswith("every "):
        seconds = durations.seconds_of(written.removeprefix("every "))
        one = {60.0: "minute", 3600.0: "hour", 86_400.0: "day"}
        return "" if seconds is None else f"Every {one.get(seconds) or duration(seconds)}"
    fields = written.split()
    if len(fields) != 6 or fields[3] != "*":
        return ""
    minute, hour, day, _, weekday, zone = fields
    is_daily = day == weekday == "*"
    if minute == "*" or (step := _step(minute, 60)):
        words = "Every minute" if minute == "*" else f"Every {many(step, 'minute')}"
        return words if is_daily and hour == "*" else ""
    if not minute.isdecimal():
        return ""
    at = f", at :{minute:0>2}"
    if hour == "*" and is_daily:
        return f"Every hour{at}"
    if (step := _step(hour, 24)) and is_daily:
        return f"Every {many(step, 'hour')}{at if int(minute) else ''}"
    if not hour.isdecimal() or "*" not in (day, weekday):
        return ""
    which = "Daily" if is_daily else f"Day {day} of the month" if day.isdecimal() else ""
    if weekday != "*":
        is_one = weekday.isdecimal() and int(weekday) < len(_DAYS)
        which = _DAYS[int(weekday)] if is_one else "Mondays to Fridays" if weekday == "1-5" else ""
    return which and f"{which} at {hour:0>2}:{minute:0>2}, {zone.rpartition('/')[2].replace('_', ' ')}"


def _step(field: str, whole: int) -> int:
    """Return the step of a cron field, */15, if it divides the whole evenly; else 0."""
    text = field.removeprefix("*/")
    step = int(text) if field.startswith("*/") and text.isdecimal() and len(text) < 3 else 0
    return step if step and whole % step == 0 else 0


def error_line(error: JobError) -> str:
    """Return the error of a run on one line."""
    return brief(f"{error.type}: {error.message}" if error.message else error.type, 200)


def progress_line(progress: Progress) -> str:
    """Return the progress of a job on one line."""
    total = "" if progress.total is None else f" of {progress.total:g}"
    message = f", {brief(progress.message, 80)}" if progress.message else ""
    return f"{progress.done:g}{total}{message}"


def share(progress: Progress) -> float | None:
    """Return the completed share of a job's work, 0 to 1; None without a total."""
    if not progress.total or progress.total < 0:
        return None
    return min(max(progress.done / progress.total, 0.0), 1.0)
