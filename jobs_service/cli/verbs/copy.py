"""`copy`: copies all jobs of one store into another."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from jobs_service.cli import exits, output, session
from jobs_service.cli.names import printable, shown
from jobs_service.cli.options import JsonOption
from jobs_service.cli.tables import Column, table

if TYPE_CHECKING:
    from jobs_service.copying import Copied
    from jobs_service.copying.results import Progress
    from jobs_service.settings import Settings
    from jobs_service.sources import Sources
    from jobs_service.store import Store

FromArgument = Annotated[str, typer.Argument(metavar="FROM", help="The store that has the jobs: lmdb:PATH.")]
ToArgument = Annotated[
    str, typer.Argument(metavar="TO", help="The store that gets them, made if it is missing: lmdb:PATH, fdb:FILE.")
]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Go on although jobs run or either store is in use. Running jobs are copied as pending ones, first in "
        "their queue; jobs that are in TO already stay as they are there.",
    ),
]
StartOverOption = Annotated[
    bool, typer.Option("--start-over", help="First remove what an unfinished copy has left in TO.")
]

COLUMNS = (
    Column("type", lambda counts: shown(counts.type)),
    Column("ready", lambda counts: str(counts.ready), right=True),
    Column("scheduled", lambda counts: str(counts.scheduled), right=True),
    Column("running", lambda counts: str(counts.running), right=True),
    Column("finished", lambda counts: str(counts.finished), right=True),
)


def copy(
    context: typer.Context,
    source: FromArgument,
    target: ToArgument,
    force: ForceOption = False,
    start_over: StartOverOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy all types and jobs into another store.

    The jobs keep all that is known of them, and the queues keep their order. End the programs that use FROM first; the
    copy only reads it. TO must have no jobs. No worker gets a job of TO before all are copied and compared.
    If a copy is interrupted, run the same command again: it goes on where it stopped.
    """
    session.refuse_store(context, "name both stores: copy FROM TO")
    import asyncio

    addresses = absolute_address(source, "FROM"), absolute_address(target, "TO")
    if addresses[0] == addresses[1]:
        raise typer.BadParameter(f"{target} is the store that is copied; name another", param_hint="TO")
    copied = asyncio.run(_copy(*addresses, force=force, start_over=start_over))
    if as_json:
        output.json_line(_as_json(*addresses, copied))
        return
    if copied.types:
        table(COLUMNS, copied.types)
    output.line(_summary(*addresses, copied))


def absolute_address(address: str, name: str) -> str:
    """Return an address that names the same store in every working directory."""
    from jobs_service.store import open_address

    settings, sources = _surroundings()
    if address == "memory:":
        raise typer.BadParameter("memory: is gone when the command has ended; name another store", param_hint=name)
    open_address(address, settings, sources)  # raises if it is not an address
    scheme, _, path = address.partition(":")
    directory = ""  # of the cluster, and no part of its file's name
    if scheme == "fdb" and "?" in path:
        path, mark, rest = path.rpartition("?")
        directory = mark + rest
    return f"{scheme}:{os.path.realpath(path)}{directory}" if path else address


def _surroundings() -> tuple[Settings, Sources]:
    from jobs_service.settings import Settings
    from jobs_service.sources import Sources

    return Settings(), Sources()


async def _copy(source: str, target: str, *, force: bool, start_over: bool) -> Copied:
    import asyncio

    from jobs_service.cli.logging import configure
    from jobs_service.copying import copy_jobs
    from jobs_service.errors import StoreError
    from jobs_service.settings import log_unknown_variables
    from jobs_service.store import open_address

    configure("warning")
    log_unknown_variables()
    missing = session.missing_store(source)
    if missing is not None:
        raise StoreError(f"there is no store at {missing}: nothing to copy")
    _, sources = _surroundings()
    async with AsyncExitStack() as stack:

        async def opened(address: str) -> Store:
            return await stack.enter_async_context(_open(open_address(address, *_surroundings())))

        read = await opened(source)
        is_there = session.missing_store(target) is None
        # A refused copy leaves no empty store behind.
        written = await (opened(target) if is_there else stack.enter_async_context(_open(session.imitated(target))))
        with _bar() as progress:
            try:
                return await copy_jobs(
                    read,
                    written,
                    sources=sources,
                    make=None if is_there else partial(opened, target),
                    force=force,
                    start_over=start_over,
                    progress=progress,
                )
            except asyncio.CancelledError:
                exits.say("interrupted; the same command goes on where it stopped")
                raise


@asynccontextmanager
async def _open(store: Store) -> AsyncIterator[Store]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def _bar() -> Iterator[Progress | None]:
    """Show the copy's progress on a terminal while the block runs."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from jobs_service.cli.signals import cursor_given_back

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with cursor_given_back(sys.stderr), Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks = {"": bar.add_task("", total=None)}

        def show(step: str, done: int, total: int | None) -> None:
            if step not in tasks:
                bar.remove_task(tasks.popitem()[1])
                tasks[step] = bar.add_task(step, total=total)
            bar.update(tasks[step], completed=done)

        yield show


def _as_json(source: str, target: str, copied: Copied) -> dict[str, object]:
    return {
        "from": source,
        "to": target,
        "types": len(copied.types),
        "jobs": copied.jobs,
        "ready": sum(counts.ready for counts in copied.types),
        "scheduled": sum(counts.scheduled for counts in copied.types),
        "running": copied.running,
        "finished": sum(counts.finished for counts in copied.types),
        "resumed": copied.resumed,
        "complete_before": copied.complete_before,
        "skipped": copied.skipped,
        "differing": copied.differing,
        **({"unreadable": copied.unreadable} if copied.unreadable else {}),
        **({"strays": copied.strays} if copied.strays else {}),
    }


def _summary(source: str, target: str, copied: Copied) -> str:
    """Return one line about the result and the next step."""
    if copied.complete_before:
        return f"{printable(target)} is a complete copy already: {output.many(copied.jobs, 'job')}; nothing was written"
    what = [f"{output.many(copied.jobs - copied.skipped, 'job')} of {output.many(len(copied.types), 'type')} copied"]
    if copied.running:
        what.append(f"{copied.running} of them ran and are pending now")
    if copied.skipped:
        what.append(f"{output.many(copied.skipped, 'job')} stayed as before in {printable(target)}")
    if copied.unreadable:
        what.append(f"{output.many(copied.unreadable, 'unreadable job')} left out")
    if copied.strays:
        entries = "1 queue entry" if copied.strays == 1 else f"{copied.strays} queue entries"
        what.append(f"{entries} of no job left out")
    if copied.differing:
        what.append(f"{output.many(copied.differing, 'job')} not as in {printable(source)}")
    else:
        what.append("compared")
    return "; ".join(what) + f". Now have your programs use {printable(target)}; {printable(source)} is as it was"
