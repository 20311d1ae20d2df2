"""What replications of a daemon cost between databases of a partner: `python -m tests.replication.measure WHAT`.

`whole` copies documents of all kinds, compares everything, and prints the most memory that the daemon had. `latency`
prints how long a change takes to the target of a continuous replication; `many` has more continuous replications than
slots, and prints whether each went on from its checkpoint; `idle` prints what replications of silent sources cost.
The partner is the CouchDB that COUCHDB_URL names, else a pouchdb-server.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from jobs_service import Job, JobsService
from jobs_service.replication import replicate
from tests.cli.support import environment
from tests.replication.bench import partner
from tests.replication.support import IDS, attachment

PROGRAM = """
from jobs_service import JobsService
from jobs_service.replication import register_replication

jobs = JobsService()
register_replication(jobs, slots={slots}, interval={interval})
"""
MEGABYTE = random.Random(1).randbytes(1 << 20)


class Partner:
    """A server, and a session to it."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url
        self._made: list[str] = []

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return what it answers, as JSON."""
        async with self.session.request(method, f"{self.url}{path}", json=body) as answer:
            found = json.loads(await answer.read())
            assert answer.status < 400, f"{method} {path}: {answer.status} {found}"
            return found

    async def database(self, name: str) -> str:
        """Make a database, and return its path."""
        path = f"/measure-{os.getpid()}-{name}"
        await self.ask("PUT", path)
        self._made.append(path)
        return path

    async def write(self, path: str, documents: list[dict[str, Any]]) -> None:
        """Write documents with the revisions that they have."""
        for each in await self.ask("POST", f"{path}/_bulk_docs", {"new_edits": False, "docs": documents}):
            assert "error" not in each, each

    async def forget(self) -> None:
        """Remove the databases."""
        for path in self._made:
            await self.ask("DELETE", path)


@asynccontextmanager
async def daemon(directory: Path, slots: int = 100, interval: float = 60.0) -> AsyncIterator[tuple[JobsService, int]]:
    """Yield a service and the id of the process that runs its replications; `log` in the directory is its log."""
    (directory / "app.py").write_text(PROGRAM.format(slots=slots, interval=interval))
    store = f"lmdb:{directory / 'store'}"
    async with JobsService(store) as jobs:
        with (directory / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "jobs_service", "serve", "app:jobs", "--log-level", "debug"),
                cwd=directory,
                env=environment({"JOBS_SERVICE_STORE": store}),
                stderr=log,
            )
            try:
                yield jobs, process.pid
            finally:
                process.terminate()
                await process.wait()


def memory(pid: int) -> float:
    """Return the most MB that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1000


def processor(pid: int) -> float:
    """Return the seconds of processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def revisions(number: int, choices: random.Random, longest: int) -> list[dict[str, Any]]:
    """Return the leaf revisions of a document: some with conflicts, deletions, long and stemmed histories."""
    found = []
    for branch in range(choices.choice((1, 1, 1, 1, 2, 3))):
        length = choices.choice((1, 1, 2, 5, 40, longest))
        stemmed = choices.choice((0, 0, 0, 500))
        names = [hashlib.md5(f"{number} {branch} {each}".encode()).hexdigest() for each in range(length)]
        form: dict[str, Any] = {
            "_id": f"{IDS[number % len(IDS)]} {number}",
            "number": number,
            "text": "é" * choices.randrange(100),
        }
        form |= {"_rev": f"{length + stemmed}-{names[0]}", "_revisions": {"start": length + stemmed, "ids": names}}
        if number < 990 and branch == 0:
            size = choices.choice((0, 1, 100, 2000, 2000, 50_000))
            kind = choices.choice(("text/plain", "image/png"))
            form["_attachments"] = {"ä b.bin": attachment(choices.randbytes(size), kind)}
        elif choices.random() < 0.1:
            form["_deleted"] = True
        found.append(form)
    return found


async def whole(server: Partner, directory: Path, given: argparse.Namespace) -> None:
    """Copy documents of all kinds, and compare."""
    choices, sent = random.Random(1), 0
    source, target = await server.database("source"), await server.database("target")
    for first in range(0, given.documents, 200):
        documents = [each for number in range(first, first + 200) for each in revisions(number, choices, given.longest)]
        sent += len(documents)
        await server.write(source, documents)
    large = [5] * given.large + ([given.largest] if given.largest else [])
    for number, size in enumerate(large):

        async def content(size: int = size) -> AsyncIterator[bytes]:
            for _ in range(size):
                yield MEGABYTE

        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size << 20)}
        path = f"{server.url}{source}/large{number}/att"
        async with server.session.put(path, data=content(), headers=headers) as answer:
            answer.raise_for_status()
    print(f"{given.documents} documents, {sent} revisions, {len(large)} large attachments", flush=True)
    async with daemon(directory) as (jobs, pid):
        before, began = memory(pid), time.perf_counter()
        job = await replicate(jobs, f"{server.url}{source}", f"{server.url}{target}")
        result = await jobs.result(job.type, job.id)
        seconds = time.perf_counter() - began
        figures = {name: result[name] for name in ("docs_read", "docs_written", "doc_write_failures")}
        print(f"{seconds:.1f} s, {figures}, {memory(pid):.0f} MB at most, {before:.0f} MB before", flush=True)
        await replicate(jobs, f"{server.url}{source}", f"{server.url}{target}")
        again = await jobs.result(job.type, job.id)
        print(f"again: no_changes {again['no_changes']}")
    ours, theirs = [await contents(server, path) for path in (source, target)]
    differing = [each for each in {*ours, *theirs} if ours.get(each) != theirs.get(each)]
    print(f"{len(ours)} and {len(theirs)} leaf revisions, {len(differing)} differ: {differing[:3]}")


async def contents(server: Partner, path: str) -> dict[tuple[str, str], Any]:
    """Return all leaf revisions with their ancestors, and digests of all attachments' bytes."""
    rows = (await server.ask("GET", f"{path}/_changes?style=all_docs"))["results"]
    wanted = [{"id": row["id"], "rev": each["rev"]} for row in rows for each in row["changes"]]
    found: dict[tuple[str, str], Any] = {}
    for first in range(0, len(wanted), 100):
        some = wanted[first : first + 100]
        small = [each for each in some if not each["id"].startswith("large")]
        for asked, inline in ((small, "true"), ([each for each in some if each not in small], "false")):
            answer = await server.ask("POST", f"{path}/_bulk_get?revs=true&attachments={inline}", {"docs": asked})
            for each in (form["ok"] for result in answer["results"] for form in result["docs"]):
                for name, form in each.get("_attachments", {}).items():
                    if inline == "false":
                        form["data"] = await digest(server, f"{path}/{quote(each['_id'], safe='')}/{quote(name)}")
                    form.pop("revpos", None)
                found[each["_id"], each["_rev"]] = each
    return found


async def digest(server: Partner, path: str) -> str:
    """Return the digest of an attachment's bytes."""
    found = hashlib.sha256()
    async with server.session.get(f"{server.url}{path}") as answer:
        async for chunk in answer.content.iter_any():
            found.update(chunk)
    return found.hexdigest()


async def latency(server: Partner, directory: Path, given: argparse.Namespace) -> None:
    """Write one document after another, and wait for each at the target."""
    source, target = await server.database("source"), await server.database("target")
    took, choices = [], random.Random(1)
    async with daemon(directory) as (jobs, _):
        await replicate(jobs, f"{server.url}{source}", f"{server.url}{target}", continuous=True)
        query = "feed=continuous&heartbeat=5000&since=0"
        async with server.session.get(f"{server.url}{target}/_changes?{query}") as feed:
            for number in range(given.changes + 5):
                await asyncio.sleep(choices.random() * 0.2)
                began = time.perf_counter()
                await server.ask("PUT", f"{source}/doc{number}", {"number": number})
                while f'"doc{number}"'.encode() not in await feed.content.readline():
                    pass
                took.append(time.perf_counter() - began)
    took = sorted(took[5:])  # not what came before it ran
    median, late = statistics.median(took), took[int(0.99 * len(took))]
    print(
        f"{len(took)} changes: median {median * 1000:.0f} ms, p99 {late * 1000:.0f} ms, most {took[-1] * 1000:.0f} ms"
    )


async def many(server: Partner, directory: Path, given: argparse.Namespace) -> None:
    """Run more continuous replications than there are slots, and write something to each again and again."""
    pairs = [
        (await server.database(f"source{number}"), await server.database(f"target{number}"))
        for number in range(given.replications)
    ]
    async with daemon(directory, given.slots, given.interval) as (jobs, pid):
        added: list[Job] = []
        for source, target in pairs:
            await server.ask("PUT", f"{source}/round0", {})
            ends = f"{server.url}{source}", f"{server.url}{target}"
            added.append(await replicate(jobs, *ends, continuous=True))
        for round in range(given.rounds):
            began = time.perf_counter()
            if round:
                for source, _ in pairs:
                    await server.ask("PUT", f"{source}/round{round}", {})
            missing = [target for _, target in pairs]
            while missing:
                await asyncio.sleep(1)
                missing = [each for each in missing if (await server.ask("GET", each))["doc_count"] <= round]
            print(f"round {round}: all have it after {time.perf_counter() - began:.0f} s", flush=True)
        print(f"{memory(pid):.0f} MB at most, {processor(pid):.1f} s of processor time")
    written: dict[str, Any] = {}
    starts = resumed = crashed = 0
    for line in map(json.loads, (directory / "log").read_text().splitlines()):
        crashed += line["event"] == "job_crashed"
        if line["event"] == "checkpoint_written":
            written[line["job_id"]] = line["seq"]
        elif line["event"] == "replication_started":
            starts += 1
            resumed += line["since"] == written.get(line["job_id"], 0)
    print(f"{starts} starts, {resumed} of them where the last checkpoint was, {crashed} crashes")


async def idle(server: Partner, directory: Path, given: argparse.Namespace) -> None:
    """Look at a daemon's processor time without replications, and with some whose sources are silent."""
    spent: list[float] = []
    for count in (0, given.replications):
        place = directory / str(count)
        place.mkdir()
        async with daemon(place) as (jobs, pid):
            for number in range(count):
                source, target = await server.database(f"source{number}"), await server.database(f"target{number}")
                await replicate(jobs, f"{server.url}{source}", f"{server.url}{target}", continuous=True)
            await asyncio.sleep(20)
            before = processor(pid)
            await asyncio.sleep(given.seconds)
            spent.append((processor(pid) - before) / given.seconds)
            print(f"{count} replications: {100 * spent[-1]:.3f} % of a core", flush=True)
    print(f"each costs {100 * (spent[1] - spent[0]) / given.replications:.4f} % of a core")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["whole", "latency", "many", "idle"])
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--longest", type=int, default=900, help="revisions of the longest histories")
    parser.add_argument("--large", type=int, default=10, help="attachments of 5 MB")
    parser.add_argument("--largest", type=int, default=200, help="MB of the largest attachment; 0 for none")
    parser.add_argument("--changes", type=int, default=300)
    parser.add_argument("--replications", type=int, default=200)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--interval", type=float, default=2.0, help="seconds of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=180.0)
    given = parser.parse_args()
    measure = {"whole": whole, "latency": latency, "many": many, "idle": idle}[given.what]
    timeout, headers = aiohttp.ClientTimeout(total=None), {"Accept-Encoding": "identity"}  # a compressed feed lags
    with tempfile.TemporaryDirectory() as directory:
        async with partner() as url, aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            server = Partner(session, url)
            try:
                await measure(server, Path(directory), given)
            finally:
                await server.forget()


if __name__ == "__main__":
    asyncio.run(main())
