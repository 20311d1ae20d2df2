"""`backup`: copies the embedded store into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs_service.cli import output, program
from jobs_service.names import printable

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
