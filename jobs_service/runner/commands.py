"""The handler of command jobs, which run a program with arguments. Floor: runner.

It is off unless somebody asks for it: who can add jobs to the store can then run any program as the daemon's user.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from jobs_service.model import JobType
from jobs_service.runner.command import MOST_KEPT, Command, run_command
from jobs_service.runner.handler import Handler
from jobs_service.runner.options import HandlerOptions

COMMAND_TYPE: Final[JobType] = "command"


def command_handler(options: HandlerOptions) -> Handler[Any, Any]:
    """Return the handler of command jobs.

    Args:
        options: how they are run; the grace is also that between SIGTERM and SIGKILL.
    """
    # The command's own end takes a grace of its own, after which there is nothing left to wait for.
    patient = replace(options, grace=2 * options.grace + 1)

    async def run(args: Any) -> Any:
        result = await run_command(Command.from_data(args), grace=options.grace)
        return result.within(MOST_KEPT).to_data()

    return Handler(COMMAND_TYPE, run, patient, kind="command")
