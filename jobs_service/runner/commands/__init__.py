"""Command jobs: they run a program with arguments, never through a shell.

A worker runs them only if its program enables them: they let every client that can add jobs to the store run any
program as the worker's user.
"""

from jobs_service.model.command_result import MOST_KEPT, CommandFailed, CommandResult
from jobs_service.runner.commands.command import Command
from jobs_service.runner.commands.handler import COMMAND_TYPE, command_handler
from jobs_service.runner.commands.process import kill_all, run_command

__all__ = [
    "COMMAND_TYPE",
    "MOST_KEPT",
    "Command",
    "CommandFailed",
    "CommandResult",
    "command_handler",
    "kill_all",
    "run_command",
]
