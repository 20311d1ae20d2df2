"""The public names of command jobs, at the path that programs import; see `jobs_service.runner.commands`."""

from jobs_service.runner.commands import MOST_KEPT, Command, CommandFailed, CommandResult, run_command

__all__ = ["MOST_KEPT", "Command", "CommandFailed", "CommandResult", "run_command"]
