"""`completion`: completes verbs, options, their values and the types in the store, in a shell."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from jobs_service.cli import output, program
from jobs_service.cli.program import PROGRAM
from jobs_service.names import parsed, shown

if TYPE_CHECKING:
    from jobs_service import JobsService

VARIABLE = "_JOBS_SERVICE_COMPLETE"
"""The variable that the shell sets to request completions instead of running a verb."""

MOST: Final = 100
"""Most ids that are offered."""

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
    """Return the types in the store with a prefix."""
    return _found(context, incomplete, lambda jobs: jobs.types())


def ids(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return ids of the type's jobs with a prefix, MOST at most."""
    type = parsed(str(context.params.get("type")))

    async def look(jobs: JobsService) -> list[Any]:
        return [job.id for job in (await jobs.page(type, prefix=incomplete or None, limit=MOST)).jobs]

    return _found(context, incomplete, look)


def _found(
    context: typer.Context, incomplete: str, look: Callable[[JobsService], Awaitable[Iterable[Any]]]
) -> Iterable[str]:
    """Return what is found in the store, as texts with a prefix; nothing after an error: a shell shows none."""
    import asyncio

    from jobs_service import JobsService, Settings

    async def within(address: str) -> Iterable[Any]:
        # A person has pressed a key and waits.
        async with JobsService(address, settings=Settings(transaction_timeout=1), supervise=False) as jobs:
            return await look(jobs)

    with suppress(Exception):
        address = program.chosen_store(context)
        if program.missing_store(address) is None:
            names = map(shown, asyncio.run(within(address)))
            return [name for name in names if name.startswith(incomplete) and " " not in name]
    return []
