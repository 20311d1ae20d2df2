"""`periodic`: the last and the next tick."""

from __future__ import annotations

import re
import time
from pathlib import Path

from jobs_service import JobsService
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, arrange, rows, serving


def test_periodic_jobs_are_shown_with_their_last_and_next_tick(
    invoke: Invoke, application: str, tmp_path: Path
) -> None:
    refresh, nightly = invoke("periodic", application, "-o", "json").json_lines
    assert (refresh["last"], refresh["missed"], nightly["missed"]) == (None, "once", "skip")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:[03]0:00\.000000Z", refresh["next"])
    assert not (tmp_path / "store").exists()

    async def tick(jobs: JobsService) -> None:
        @jobs.every("1s", type="refresh")
        async def refresh() -> None: ...

        await jobs.pause("refresh")

    arrange("lmdb:store", tick)
    assert invoke("periodic", "--store", "lmdb:store").out.startswith("no periodic jobs; ")
    assert invoke("periodic", application, "--store", "lmdb:x").code == 2


def test_what_has_ticked_is_in_the_store(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "ticking.py").write_text(
        "from jobs_service import JobsService\n"
        'jobs = JobsService("lmdb:store")\n'
        '@jobs.every("1s", type="tick")\n'
        "async def tick(): ...\n"
    )
    with serving("ticking:jobs", cwd=tmp_path):
        deadline = time.monotonic() + HANG
        while not (found := invoke("periodic", "ticking:jobs", "-o", "json").json)["last"]:
            assert time.monotonic() < deadline
    assert found["last"] < found["next"]
    [heading, line] = rows(invoke("periodic", "--store", "lmdb:store").out)
    assert heading == ["TYPE", "LAST"]
    assert line[0] == "tick"
