"""`upgrade`: converts a store of an earlier format to the present one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from jobs_service.cli import output, session
from jobs_service.cli.options import JsonOption, StoreOption

if TYPE_CHECKING:
    from jobs_service import JobsService


def upgrade(context: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Give a store of an earlier version this one's format.

    End the programs that use it first: earlier versions refuse it from then on. If this is interrupted, run it again:
    it goes on where it stopped. An embedded store is upgraded when it is opened as well, by whatever verb.
    """
    from jobs_service.service.conversion import UPGRADES

    token = UPGRADES.set(True)
    try:
        counted = session.run(context, store, _counted)
    finally:
        UPGRADES.reset(token)
    if as_json:
        output.json_line({"upgraded": counted is not None, "jobs": counted or 0})
    elif counted is None:
        output.line("the store has the format of this version already")
    else:
        output.line(f"upgraded; {counted} jobs are counted")


async def _counted(jobs: JobsService) -> int | None:
    return jobs._lifecycle.converted
