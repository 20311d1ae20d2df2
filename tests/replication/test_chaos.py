"""Servers that drop, cut, corrupt and refuse, by seed: in the end both are equal, or the skipped documents are named.

`JOBS_SERVICE_REPLICATION_SEEDS=FROM:TO` runs other seeds.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from jobs_service.replication import changes, pipeline
from jobs_service.replication.contract import ReplicationError
from jobs_service.replication.http import HttpSettings
from tests.replication.server import Fault, Oddities, Server
from tests.replication.support import Replication, contents, fill

FIRST, _, LAST = os.environ.get("JOBS_SERVICE_REPLICATION_SEEDS", "0:6").partition(":")
MOST_RUNS = 60
QUICK = HttpSettings(first_wait=0.001, longest_wait=0.01, read_timeout=0.5, connect_timeout=2)
REQUESTS = (
    "GET /db$",
    "GET /db/_changes",
    "POST /db/_revs_diff",
    "POST /db/_bulk_get",
    "POST /db/_bulk_docs",
    "POST /db/_ensure_full_commit",
    "GET /db/_local",
    "PUT /db/_local",
    "open_revs",
    "PUT /db/[^_]",
    "GET /db/",
    "",
)
STATUSES = (400, 401, 403, 404, 408, 412, 413, 414, 429, 500, 502, 503)


def fault(choices: random.Random) -> Fault:
    """Return something that can go wrong."""
    pattern, times = choices.choice(REQUESTS), choices.choice((1, 1, 2, 5, 8))
    kind = choices.choice(("status", "status", "status", "drop", "after", "cut", "cut", "corrupt"))
    match kind:
        case "status":
            return Fault(pattern, status=choices.choice(STATUSES), times=times)
        case "drop":
            return Fault(pattern, drop=True, times=times)
        case "after":
            return Fault(pattern, drop_after_work=True, times=times)
        case "cut":
            return Fault(pattern, cut=choices.choice((0, 1, 50, 500, 5000)), times=times)
        case _:
            return Fault(pattern, replace=choices.choice(((b"{", b"<"), (b"}", b""), (b'"', b""))), times=times)


@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST or FIRST)))
async def test_it_ends_equal_or_names_what_it_has_skipped(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "MISSING_PAUSE", 0.001)
    monkeypatch.setattr(pipeline, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(changes, "FIRST_PAUSE", 0.001)
    choices = random.Random(seed)
    oddities: dict[str, Any] = {
        "multipart": choices.random() < 0.7,
        "gzip_text": False,
        "bulk_get": choices.random() < 0.8,
        "opaque_sequences": choices.random() < 0.7,
        "local_conflicts": choices.random() < 0.5,
    }
    async with Server(Oddities(**oddities)) as source, Server(Oddities(**oddities)) as target:
        fill(source.database("db"), 40, seed, attachments=8)
        target.database("db")
        source.faults += [fault(choices) for _ in range(choices.randrange(6))]
        target.faults += [fault(choices) for _ in range(choices.randrange(6))]
        skipped: set[tuple[str, str]] = set()
        for _ in range(MOST_RUNS):
            url = f"{source.url}/db", f"{target.url}/db"
            run = Replication(*url, settings=QUICK, worker_batch_size=7, retries_per_request=2)
            try:
                await run.run()
                break
            except ReplicationError:
                pass  # its job is tried again
            finally:
                skipped |= {(each["id"], each["rev"]) for each in run.tally.skipped_data()}
        else:
            raise AssertionError("it never ends")
        there, copied = contents(source.databases["db"]), contents(target.databases["db"])
        missing = {(id, rev) for id, leaves in there.items() for rev in leaves if rev not in copied.get(id, {})}
        assert missing <= skipped
        assert all(there[id][rev] == copied[id][rev] for id in copied for rev in copied[id] if rev in there[id])
