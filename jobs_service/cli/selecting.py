"""The jobs of a verb: one by its id or the beginning of it, or all that match a filter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_type_hints

import typer

from jobs_service.cli import output, program, terminal
from jobs_service.cli.parsing import DURATION_HELP, parse_id, parse_type, redeclared
from jobs_service.names import shown

if TYPE_CHECKING:
    from jobs_service import JobsService
    from jobs_service.service.selection import Filter

T = TypeVar("T")

MOST_NAMED: Final = 5
"""Most jobs that an error names."""


# All that match a filter


def _states() -> list[str]:
    from jobs_service.model.job import MEANT

    return [*MEANT]


def _text(name: str, metavar: str, help: str, **more: Any) -> Any:
    return Annotated[str | None, typer.Option(f"--{name}", metavar=metavar, help=f"Only jobs {help}", **more)]


OPTIONS: Final[dict[str, Any]] = {
    "state": _text(
        "state",
        "STATE",
        "that are ready, scheduled, retrying (after a crash), running, succeeded, failed, canceled or unreadable; "
        "pending (ready, scheduled or retrying); finished (in whatever way).",
        autocompletion=_states,
    ),
    "prefix": _text("prefix", "TEXT", "whose id begins with this."),
    "error": _text("error", "CLASS", "whose last error is of this class."),
    "text": _text("text", "TEXT", "whose last error's message has this, in any case."),
    "signature": _text("signature", "TEXT", "that failed as this group of `failures -o json` says."),
    "worker": _text("worker", "TEXT", "whose last worker's name, HOST:PID, has this."),
    "older": _text("older", "S", f"to which nothing has happened for so long: {DURATION_HELP}."),
    "younger": _text("younger", "S", f"to which something has happened since: {DURATION_HELP}."),
    "attempts": Annotated[
        int | None, typer.Option("--attempts", metavar="N", min=0, help="Only jobs with so many runs or more.")
    ],
    "added_before": _text("added-before", "TIME", "that were added, or retried, before."),
    "added_after": _text("added-after", "TIME", "that were added, or retried, since."),
    "data": Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="FIELD=VALUE",
            help="Only jobs with this in their data; FIELD~PART: contains; a.b.0 looks inside. Several times: all "
            "hold.",
        ),
    ],
}
"""The options of a filter, by the names of its fields."""


def selects(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options of a filter in place of its parameter `wanted`, which gets the filter."""
    kinds = get_type_hints(verb, localns={"Filter": object}, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(verb).parameters.items():
        if name == "wanted":
            parameters += [parameter.replace(name=each, annotation=OPTIONS[each], default=None) for each in OPTIONS]
        else:
            parameters.append(parameter.replace(annotation=kinds[name]))

    def run(**given: Any) -> None:
        texts = {name: given.pop(name) for name in OPTIONS}
        verb(**given, wanted=_filter({name: text for name, text in texts.items() if text not in (None, [], ())}))

    return redeclared(verb, parameters, run)


def _filter(given: dict[str, Any]) -> Filter:
    from jobs_service.service.selection import BadFilter, Filter

    # An empty value, as of an unset variable of the shell, is refused: taken for no filter it would mean all jobs.
    try:
        return Filter.of(given)
    except BadFilter as error:
        raise typer.BadParameter(str(error)) from None


# One job


def on_job(
    context: typer.Context,
    names: tuple[str, str],
    body: Callable[[JobsService, Any, Any], Coroutine[Any, Any, T]],
    *,
    changing: str | None = None,
    yes: bool = False,
    supervise: bool = False,
) -> T:
    """Run a verb's body for the job that its arguments name, by the id or by the unique beginning of one.

    Args:
        context, supervise: as in `program.run`.
        names: the arguments TYPE and ID.
        body: called with the service, the type and the id.
        changing: what the verb does, in a word: it asks before it does this to a job of another id than it was given.
            None for a verb that only looks.
        yes: whether not to ask.

    Raises:
        JobNotFound: no id begins like that.
        AnswerIsNo: several do.
    """
    from jobs_service.errors import JobNotFound, RecordDamaged

    type, id = parse_type(names[0]), parse_id(names[1])
    was_there = False

    async def on_exact_id(jobs: JobsService) -> T:
        nonlocal was_there
        with suppress(RecordDamaged):
            await jobs.get(type, id)
        was_there = True
        return await body(jobs, type, id)

    try:
        return program.run(context, on_exact_id, supervise=supervise)
    except JobNotFound:
        if was_there or not isinstance(id, str) or not id:
            raise
        found = program.run(context, lambda jobs: _beginning_with(jobs, type, id))
        if not found:
            raise
    if len(found) > 1:
        several = ", ".join(map(shown, found[:MOST_NAMED])) + (", ..." if len(found) > MOST_NAMED else "")
        raise program.AnswerIsNo(f"there is no {output.name(type, id)}; several begin like that: {several}")
    [whole] = found
    if changing is not None:
        terminal.confirm(f"There is no {output.name(type, id)}; {changing} {shown(whole)}?", yes)
    return program.run(context, lambda jobs: body(jobs, type, whole), supervise=supervise)


async def _beginning_with(jobs: JobsService, type: Any, prefix: str) -> list[Any]:
    from jobs_service.service.selection import Filter, pages

    async with aclosing(pages(jobs, type, Filter(prefix=prefix), most=MOST_NAMED + 1)) as found:
        return [job.id async for page in found for job in page.jobs]
