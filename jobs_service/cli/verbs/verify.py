"""`verify`: looks for rows of jobs in the store that do not belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from jobs_service.cli import output, program
from jobs_service.names import printable

if TYPE_CHECKING:
    from jobs_service import JobsService
    from jobs_service.verifying import Verification


def verify(context: typer.Context) -> None:
    """Check that the rows of jobs in the store belong together.

    It only reads, and the store may be in use. For each fault, as after a change of the store by hand, one line is
    printed, and the exit code is 1. It is about rows: a page that cannot be read ends it, with exit code 3.
    """
    as_json = output.wants_json(context)
    found, faults, location = program.run(context, lambda jobs: _verified(jobs, as_json))
    told = f"{output.many(found.jobs, 'job')} of {output.many(found.types, 'type')}"
    if as_json:
        form = {"sound": not faults, "faults": faults, "jobs": found.jobs, "types": found.types}
        output.json_line({**form, "types_not_compared": found.moving})
    if faults:
        raise program.AnswerIsNo(
            f"{location}: {output.many(faults, 'fault')}, {told}: end the programs that use it, and restore a backup, "
            "or copy its jobs into another store: jobs-service copy"
        )
    if not as_json:
        moving = f"; {output.many(found.moving, 'type')} changed too fast to compare counts" if found.moving else ""
        output.line(f"sound: {location}: {told}{moving}")


async def _verified(jobs: JobsService, as_json: bool) -> tuple[Verification, int, str]:
    from jobs_service.verifying import Verification

    found, faults = Verification(jobs.store, await jobs.store.prefix()), 0
    async for fault in found.faults():
        faults += 1
        if as_json:
            output.json_line({"fault": fault})
        else:
            output.line(printable(fault))
    return found, faults, jobs.store.location
