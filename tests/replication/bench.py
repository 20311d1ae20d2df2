"""Documents per second beside the partner's own replicator, in alternating runs: `python -m tests.replication.bench`.

The partner is the CouchDB that COUCHDB_URL names, else a pouchdb-server (JOBS_SERVICE_TEST_POUCHDB or PATH). Both
replicators copy between two databases of the same server, so that the server's work counts for both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import aiohttp

from jobs_service.replication.endpoint import parse_endpoint
from tests.replication.partners import pouch_server
from tests.replication.support import Replication, attachment

BATCH = 1000
TEXT = "x" * 200


@asynccontextmanager
async def partner() -> AsyncIterator[str]:
    """The address of a server, with its credentials."""
    if url := os.environ.get("COUCHDB_URL", "").rstrip("/"):
        yield url
        return
    with tempfile.TemporaryDirectory() as directory:
        async with pouch_server(Path(directory) / "pouch") as server:
            yield server.url


async def measure(url: str, documents: int, rounds: int, mixed: bool) -> None:
    """Print what both replicators do, round after round, and the ratio of the medians."""
    endpoint = parse_endpoint(url)
    password = endpoint.password.reveal() if endpoint.password else ""
    headers = {"Authorization": aiohttp.encode_basic_auth(endpoint.user, password)} if endpoint.user else {}
    names = [f"bench-{os.getpid()}-{each}" for each in ("source", "ours", "theirs")]
    source, ours, theirs = (f"{url}/{name}" for name in names)
    async with aiohttp.ClientSession(headers=headers) as session:

        async def ask(method: str, path: str, body: Any = None) -> dict[str, Any]:
            async with session.request(method, f"{endpoint.url}{path}", json=body) as answer:
                return dict(json.loads(await answer.read() or b"{}"), status=answer.status)

        await ask("PUT", f"/{names[0]}")
        revisions = 0
        for first in range(0, documents, BATCH):
            given = [revisions_of(number, mixed) for number in range(first, min(first + BATCH, documents))]
            docs = [*chain.from_iterable(given)]
            async with session.post(
                f"{endpoint.url}/{names[0]}/_bulk_docs", json={"new_edits": False, "docs": docs}
            ) as written:
                await written.read()
            revisions += len(docs)
        rates: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(rounds):
            for name in names[1:]:
                await ask("DELETE", f"/{name}")
                await ask("PUT", f"/{name}")
            began = time.perf_counter()
            assert (await Replication(source, ours).run())["docs_written"] == revisions
            rates["ours"].append(documents / (time.perf_counter() - began))
            began = time.perf_counter()
            answer = await ask("POST", "/_replicate", {"source": source, "target": theirs})
            assert answer.get("ok"), answer
            rates["theirs"].append(documents / (time.perf_counter() - began))
            print({who: round(found[-1]) for who, found in rates.items()}, flush=True)
        for name in names:
            await ask("DELETE", f"/{name}")
    medians = {who: statistics.median(found) for who, found in rates.items()}
    print(json.dumps({**{who: round(each) for who, each in medians.items()}, "ratio": round(ratio(medians), 2)}))


def ratio(medians: dict[str, float]) -> float:
    """Return how many times as fast ours is."""
    return medians["ours"] / medians["theirs"]


def revisions_of(number: int, mixed: bool) -> list[dict[str, Any]]:
    """Return a small document; of mixed ones every tenth has an attachment of 2 kB, every tenth a conflict."""
    found: dict[str, Any] = {"_id": f"doc{number:07}", "_rev": f"1-{'a' * 32}", "number": number, "text": TEXT}
    if mixed and number % 10 == 0:
        found["_attachments"] = {"att": attachment(random.Random(number).randbytes(2000), "image/png")}
    return [found, {**found, "_rev": f"1-{'b' * 32}"}] if mixed and number % 10 == 5 else [found]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mixed", action="store_true", help="some have attachments, some conflicts")
    given = parser.parse_args()
    async with partner() as url:
        await measure(url, given.documents, given.rounds, given.mixed)


if __name__ == "__main__":
    asyncio.run(main())
