"""`add-many`: adds one job per JSON line."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from jobs_service.cli import output, session, values
from jobs_service.cli.names import parse_type
from jobs_service.cli.options import JsonOption, NewTypeOption, StoreOption, TypeArgument
from jobs_service.cli.type_checks import ensure_type
from jobs_service.cli.verbs.add import ResubmitOption
from jobs_service.names import shown

if TYPE_CHECKING:
    from jobs_service import JobsService

FileArgument = Annotated[str, typer.Argument(metavar="FILE|-", help="JSON lines; - or no FILE reads standard input.")]


def add_many(
    context: typer.Context,
    type: TypeArgument,
    file: FileArgument = "-",
    resubmit: ResubmitOption = False,
    timeout: NewTypeOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add one job per JSON line.

    A line is {"id": ..., "data": ..., "priority": ..., "run_at": ...}; only id is required.
    run_at is an ISO time with an offset or seconds since the epoch; id and priority are written as on the command
    line. It stops at a bad line: the jobs of the lines before are added, and stay.
    """
    from jobs_service.cli.batches import IfExists, add_lines

    name = parse_type(type)
    seconds = None if timeout is None else values.positive_duration(timeout, "--timeout")
    with ExitStack() as opened:
        descriptor = _open(file, opened)
        if_exists: IfExists = "resubmit" if resubmit else "error"

        async def make_type(jobs: JobsService) -> None:
            if seconds is not None:
                await jobs.transact(lambda tx: ensure_type(tx, name, seconds))

        async def rehearsal(jobs: JobsService) -> None:
            await make_type(jobs)
            await jobs.get_type_timeout(name)

        async def body(jobs: JobsService) -> int:
            await make_type(jobs)
            return await add_lines(jobs, name, descriptor, if_exists)

        added = session.run(context, store, body, rehearsal=rehearsal)
    if as_json:
        output.json_line({"type": shown(name), "added": added})
    else:
        output.line(f"type {shown(name)}: {output.many(added, 'job')} added")


def _open(file: str, opened: ExitStack) -> int:
    if file == "-":
        return sys.stdin.fileno()
    try:
        return opened.enter_context(open(file, "rb", buffering=0)).fileno()
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None
