"""Command jobs: they run a program with arguments, never through a shell.

Nobody runs them unless they are asked for: whoever can add jobs to the store could then run any program as the user of
the worker.
"""

from jobs_service.model.command_result import MOST_KEPT, CommandFailed, CommandResult
from jobs_service.runner.commands.command import Command
from jobs_service.runner.commands.handler import COMMAND_TYPE, command_handler
from jobs_service.runner.commands.process import run_command

__all__ = [
    "COMMAND_TYPE",
    "MOST_KEPT",
    "Command",
    "CommandFailed",
    "CommandResult",
    "command_handler",
    "run_command",
]
