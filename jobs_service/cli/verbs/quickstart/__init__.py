"""`quickstart`: a guided demonstration of real work on a temporary store."""

from __future__ import annotations

import typer

from jobs_service.cli import session


def quickstart(context: typer.Context) -> None:
    """See it work, in about ten seconds.

    Jobs are added, run, lost, found again and finished: worker processes compress the files of this package, and one of
    them is killed in the middle of a job. The store is in a temporary directory, which is removed at the end.
    """
    session.refuse_store(context, "the demonstration has a store of its own")
    import asyncio
    import tempfile
    from pathlib import Path

    from jobs_service.cli.verbs.quickstart.demonstration import demonstrate

    # After a second Ctrl-C a worker may still write files, which must not make the removal fail.
    with tempfile.TemporaryDirectory(prefix="jobs-service-quickstart-", ignore_cleanup_errors=True) as directory:
        asyncio.run(demonstrate(Path(directory)))
