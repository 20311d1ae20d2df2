"""Shell completion: of verbs, options, their values and the types in the store."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from jobs_service.cli import output, session
from jobs_service.cli.exits import PROGRAM
from jobs_service.cli.names import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

VARIABLE = "_JOBS_SERVICE_COMPLETE"
"""With it the shell asks for completions instead of running a verb."""

ShellArgument = Annotated[
    Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="The shell that it is for.")
]


def completion(shell: ShellArgument) -> None:
    """Print what makes a shell complete this program's words.

    For bash put this into ~/.bashrc: eval "$(jobs-service completion bash)"
    """
    from typer import completion

    output.line(
        completion.get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell)  # type: ignore[attr-defined]
    )


def is_asked() -> bool:
    """Whether a shell wants to know how its user's words may go on."""
    return VARIABLE in os.environ


def answer(command: Any) -> None:
    """Print how the words may go on that the shell has put into the environment.

    Raises:
        typer.Exit: always.
    """
    from typer import completion

    completion.completion_init()  # type: ignore[attr-defined]
    raise typer.Exit(completion.shell_complete(command, {}, PROGRAM, VARIABLE, os.environ[VARIABLE]))


def types(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the types of the store that begin like this; none where they cannot be had: a shell is told no errors."""
    import asyncio

    from jobs_service import JobsService, Settings

    async def look(address: str) -> list[Any]:
        # Whoever has pressed a key does not wait for long.
        async with JobsService(address, settings=Settings(transaction_timeout=1), supervise=False) as jobs:
            return await jobs.types()

    with suppress(Exception):
        context.obj = session.GlobalOptions(context.find_root().params.get("store"))
        address = session.chosen_store(context, context.params.get("store"))
        if session.missing_store(address) is None:
            names = map(shown, asyncio.run(look(address)))
            return [name for name in names if name.startswith(incomplete) and " " not in name]
    return []
