"""The handler of command jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from jobs_service.model import JobType
from jobs_service.model.command_result import MOST_KEPT
from jobs_service.runner.commands.command import Command
from jobs_service.runner.commands.process import run_command
from jobs_service.runner.handler import Handler
from jobs_service.runner.options import HandlerOptions

COMMAND_TYPE: Final[JobType] = "command"


def command_handler(options: HandlerOptions) -> Handler[Any, Any]:
    """Return the handler of command jobs.

    Args:
        options: the handler's options; their grace is also the time between SIGTERM and SIGKILL.
    """
    # `run_command` may take the grace twice: for what holds the output, and between SIGTERM and SIGKILL. The runner
    # must not give up the job before that, and nothing is left to wait for after it.
    patient = replace(options, grace=2 * options.grace + 1)

    async def run(args: Any) -> Any:
        result = await run_command(Command.from_data(args), grace=options.grace)
        return result.within(MOST_KEPT).to_data()

    return Handler(COMMAND_TYPE, run, patient, kind="command")
