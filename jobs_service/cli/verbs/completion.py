"""`completion`: completes verbs, options, their values and the types in the store, in a shell."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any, Literal

import typer

from jobs_service.cli import output, program
from jobs_service.cli.program import PROGRAM
from jobs_service.names import shown

VARIABLE = "_JOBS_SERVICE_COMPLETE"
"""The variable that the shell sets to request completions instead of running a verb."""

ShellArgument = Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="The shell.")]


def completion(shell: ShellArgument) -> None:
    """Print a script that completes words in a shell.

    For bash put this into ~/.bashrc: eval "$(jobs-service completion bash)"
    """
    from typer import completion

    output.line(
        completion.get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell)  # type: ignore[attr-defined]
    )


def is_asked() -> bool:
    """Return whether the shell requests completions."""
    return VARIABLE in os.environ


def answer(command: Any) -> None:
    """Print the completions of the words in the environment.

    Raises:
        typer.Exit: always.
    """
    from typer import completion

    completion.completion_init()  # type: ignore[attr-defined]
    raise typer.Exit(completion.shell_complete(command, {}, PROGRAM, VARIABLE, os.environ[VARIABLE]))


def types(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the types in the store with a prefix; none after an error, because a shell shows no errors."""
    import asyncio

    from jobs_service import JobsService, Settings

    async def look(address: str) -> list[Any]:
        # A person has pressed a key and waits.
        async with JobsService(address, settings=Settings(transaction_timeout=1), supervise=False) as jobs:
            return await jobs.types()

    with suppress(Exception):
        context.obj = program.GlobalOptions(context.find_root().params.get("store"))
        address = program.chosen_store(context, context.params.get("store"))
        if program.missing_store(address) is None:
            names = map(shown, asyncio.run(look(address)))
            return [name for name in names if name.startswith(incomplete) and " " not in name]
    return []
