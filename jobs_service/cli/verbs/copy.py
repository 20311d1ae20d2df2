"""`copy` and `backup`: copy all jobs of one store into another, or the embedded store into a file."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs_service.cli import output, program
from jobs_service.cli.output import Column, table
from jobs_service.cli.terminal import Bar
from jobs_service.names import printable, shown

if TYPE_CHECKING:
    from jobs_service.copying import Copied
    from jobs_service.settings import Settings
    from jobs_service.sources import Sources
    from jobs_service.store import Store

FromArgument = Annotated[
    str, typer.Argument(metavar="FROM", help="The store that has the jobs: lmdb:PATH, sqlite:PATH.")
]
ToArgument = Annotated[
    str, typer.Argument(metavar="TO", help="The store that gets them, made if it is missing: sqlite:PATH, fdb:FILE.")
]
AnewOption = Annotated[
    bool, typer.Option("--anew", help="First remove what a copy that was cut off has left in TO; then begin anew.")
]

COLUMNS = (
    Column("type", lambda counts: shown(counts.type), whole=True),
    Column("ready", lambda counts: str(counts.ready), right=True),
    Column("scheduled", lambda counts: str(counts.scheduled), right=True),
    Column("finished", lambda counts: str(counts.finished), right=True),
)


def copy(context: typer.Context, source: FromArgument, target: ToArgument, anew: AnewOption = False) -> None:
    """Copy all types and jobs into another store.

    The jobs keep all that is known of them, and the queues keep their order. End the programs that use FROM and TO
    first; the copy only reads FROM. TO must be empty. Nobody can use TO before all jobs are copied and counted.
    If a copy is cut off, begin it anew with --anew.
    """
    program.refuse_store(context, "name both stores: copy FROM TO")
    import asyncio

    addresses = absolute_address(source, "FROM"), absolute_address(target, "TO")
    if addresses[0] == addresses[1]:
        raise typer.BadParameter(f"{target} is the store that is copied; name another", param_hint="TO")
    copied = asyncio.run(_copy(*addresses, anew=anew))
    if output.wants_json(context):
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


async def _copy(source: str, target: str, *, anew: bool) -> Copied:
    import asyncio

    from jobs_service.cli.logging import configure
    from jobs_service.errors import StoreError
    from jobs_service.settings import log_unknown_variables

    configure("warning")
    log_unknown_variables()
    missing = program.missing_store(source)
    if missing is not None:
        raise StoreError(f"there is no store at {missing}: nothing to copy")
    try:
        return await _copy_open(source, target, anew)
    except asyncio.CancelledError:
        program.say("interrupted; the same command with --anew begins it anew")
        raise


async def _copy_open(source: str, target: str, anew: bool) -> Copied:
    from jobs_service.copying import copy_jobs
    from jobs_service.store import open_address

    _, sources = _surroundings()
    async with AsyncExitStack() as stack:

        async def opened(address: str) -> Store:
            return await stack.enter_async_context(_open(open_address(address, *_surroundings())))

        read = await opened(source)
        is_there = program.missing_store(target) is None
        # A refused copy leaves no empty store behind.
        written = await (opened(target) if is_there else stack.enter_async_context(_open(program.imitated(target))))
        make = None if is_there else partial(opened, target)
        with Bar() as bar:
            return await copy_jobs(read, written, sources=sources, make=make, anew=anew, progress=bar.show)


@asynccontextmanager
async def _open(store: Store) -> AsyncIterator[Store]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _as_json(source: str, target: str, copied: Copied) -> dict[str, object]:
    return {
        "from": source,
        "to": target,
        "types": len(copied.types),
        "jobs": copied.jobs,
        "ready": sum(counts.ready for counts in copied.types),
        "scheduled": sum(counts.scheduled for counts in copied.types),
        "finished": sum(counts.finished for counts in copied.types),
        **({"unreadable": copied.unreadable} if copied.unreadable else {}),
        **({"strays": copied.strays} if copied.strays else {}),
    }


def _summary(source: str, target: str, copied: Copied) -> str:
    """Return one line about the result and the next step."""
    what = [f"{output.many(copied.jobs, 'job')} of {output.many(len(copied.types), 'type')} copied"]
    if copied.unreadable:
        what.append(f"{output.many(copied.unreadable, 'unreadable job')} left out")
    if copied.strays:
        entries = "1 queue entry" if copied.strays == 1 else f"{copied.strays} queue entries"
        what.append(f"{entries} of no job left out")
    return "; ".join(what) + f". Now have your programs use {printable(target)}; {printable(source)} is as it was"


# backup


FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="A new file.")]


def backup(context: typer.Context, file: FileArgument) -> None:
    """Copy the store while it is in use.

    The copy is consistent. Of an lmdb: store it is the data.mdb: to use it, put it under that name into a new
    directory. Of an sqlite: store it has your own tables as well, and is used as it is.
    """
    path = Path(file)
    if path.exists():
        raise typer.BadParameter(f"{file} exists already; name a new file", param_hint="FILE")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no directory {path.parent}", param_hint="FILE")
    size = program.run(context, lambda jobs: jobs.store.backup(file))
    output.tell(context, {"file": file, "bytes": size}, f"{printable(file)}: {size} bytes")
