"""`watch`: one job's events as they happen. Floor: command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from jobs_service.cli import exits, output, parsing, session
from jobs_service.cli.names import parse_id, parse_type
from jobs_service.cli.options import DURATION_HELP, IdArgument, JsonOption, StoreOption, TypeArgument

if TYPE_CHECKING:
    from jobs_service import JobEvent, JobsService

TimeoutOption = Annotated[
    str | None, typer.Option("--timeout", metavar="S", help=f"Wait no longer than this: {DURATION_HELP}.")
]


def watch(
    context: typer.Context,
    type: TypeArgument,
    id: IdArgument,
    timeout: TimeoutOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a job's events live until it ends.

    Printed are its state, its progress, result or error, and its data.

    The exit code is 0 when it has finished, whatever its outcome, and 1 when it is removed before.
    """
    names = parse_type(type), parse_id(id)
    seconds = None if timeout is None else parsing.duration(timeout, "--timeout")
    show = _show_json if as_json else _show

    async def body(jobs: JobsService) -> str:
        import asyncio

        state = "unknown"
        try:
            async with asyncio.timeout(seconds), jobs.subscribe(*names) as events:
                async for event in events:
                    show(event)
                    state = event.state.value
        except TimeoutError:
            raise exits.AnswerIsNo(f"{output.name(*names)} did not finish within {seconds:g} s") from None
        return state

    if session.run(context, store, body, supervise=True) == "removed":
        raise exits.AnswerIsNo(f"{output.name(*names)} was removed before it finished")


def _show_json(event: JobEvent) -> None:
    output.json_line(output.event_json(event))


def _show(event: JobEvent) -> None:
    from datetime import datetime

    from jobs_service.sources import Sources

    now = datetime.fromtimestamp(Sources().wall_time()).astimezone()
    head = f"{now:%H:%M:%S}  {output.state_text(event):<8}  "
    text = (head + output.cut(output.told_text(event), output.width() - len(head))).rstrip()
    output.styled_line(text, output.state_text(event))
