"""How much a daemon does over HTTP, asked by clients in another process, and what its streams of events cost."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.base import TIMEOUT, TYPE, Figure, Measurements
from jobs_service import JobsClient, JobsService, NewJob
from jobs_service.http import forms

try:
    from jobs_service.http import token_file
except ImportError:  # of a checkout (`--against`) that asks nobody on this machine for a token
    token_file = None  # type: ignore[assignment]

_ENDS: Final = "ends" if hasattr(forms, "RunEndForms") else "finish"
"""The endpoint that ends several runs; a checkout (`--against`) may have an older one."""

_CONNECTIONS: Final = 16
_BATCH: Final = 100
_TYPES: Final = 1_000


class Plain:
    """A connection that sends requests and reads answers, with as little work of its own as there can be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str | None) -> None:
        self.reader = reader
        self.writer = writer
        authorization = "" if token is None else f"Authorization: Bearer {token}\r\n"
        self._always = f"HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}"

    @classmethod
    async def to(cls, port: int) -> Plain:
        """Return an open connection to the daemon at a port."""
        token = None if token_file is None else token_file.found(f"http://127.0.0.1:{port}")
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24), token)

    def send(self, path: str, body: bytes, kind: str = "application/json") -> None:
        """Send a request."""
        head = f"POST {path} {self._always}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)

    def get(self, path: str) -> None:
        """Ask for a page."""
        self.writer.write(f"GET {path} {self._always}\r\n".encode())

    async def page(self, path: str) -> bytes:
        """Return a page."""
        self.get(path)
        return await self.answer()

    async def answer(self) -> bytes:
        """Return the body of an answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        assert head.split(b" ", 2)[1][:1] == b"2", head
        if b"transfer-encoding: chunked" not in head:
            return await self.reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        body = bytearray()
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return bytes(body)

    async def ask(self, path: str, body: bytes, kind: str = "application/json") -> bytes:
        """Send a request and return the body of its answer."""
        self.send(path, body, kind)
        return await self.answer()


class HttpMeasurements(Measurements):
    """What goes through `jobs-service serve --http`."""

    @asynccontextmanager
    async def daemon(
        self, prepare: Callable[[JobsService], Awaitable[None]] | None = None
    ) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
        """Run a daemon on a fresh store, which `prepare` may fill; yields it and its port."""
        with self.address() as address:
            async with JobsService(address, supervise=False) as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                if prepare is not None:
                    await prepare(jobs)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port: int = probe.getsockname()[1]
            command = ["-m", "jobs_service", "--store", address, "serve", "--http", f"127.0.0.1:{port}"]
            nothing = asyncio.subprocess.DEVNULL
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, "--log-level", "error", stdin=nothing, stderr=nothing
            )
            try:
                async with JobsClient(f"http://127.0.0.1:{port}") as jobs:
                    await jobs.types()  # waits until it is there
                yield process, port
            finally:
                process.kill()
                await process.wait()

    async def http_jobs(self) -> list[Figure]:
        """Jobs added one by one and as NDJSON, then taken and ended in batches."""
        single, lines = self.count(20_000), self.count(100_000)
        path = f"/v1/types/{TYPE}"
        async with self.daemon() as (_, port):
            connections = [await Plain.to(port) for _ in range(_CONNECTIONS)]

            async def add(number: int) -> None:
                for count in range(number, single, _CONNECTIONS):
                    await connections[number].ask(f"{path}/jobs", b'{"id":"one-%d","data":{"n":%d}}' % (count, count))

            one_by_one = single / await _seconds(lambda: _all(add))
            body = b"".join(b'{"id":"line-%d","data":{"n":%d}}\n' % (number, number) for number in range(lines))
            first = connections[0]
            by_line = lines / await _seconds(lambda: first.ask(f"{path}/jobs", body, "application/x-ndjson"))
            left = min(single + lines, self.count(50_000))
            ended = 0

            async def work(number: int) -> None:
                nonlocal ended
                while ended < left:
                    answer = await connections[number].ask(f"{path}/accept", b'{"limit":%d}' % _BATCH)
                    how = {"end": "finish"} if _ENDS == "ends" else {}
                    ends = [{"id": job["id"], "lock": job["lock"], **how} for job in json.loads(answer)["jobs"]]
                    if not ends:
                        return
                    await connections[number].ask(f"{path}/{_ENDS}", json.dumps({"jobs": ends}).encode())
                    ended += len(ends)

            seconds = await _seconds(lambda: _all(work))
        return [
            Figure(
                "http_add", one_by_one, "/s", 1_000, True, f"jobs added by a request each, {_CONNECTIONS} connections"
            ),
            Figure("http_add_lines", by_line, "/s", 5_000, True, "jobs added by one request of lines"),
            Figure(
                "http_accept_finish", ended / seconds, "/s", 2_000, True, f"jobs taken and ended, {_BATCH} at a time"
            ),
        ]

    async def http_client(self) -> list[Figure]:
        """The same through JobsClient."""
        count = self.count(2_000)
        async with self.daemon() as (_, port), JobsClient(f"http://127.0.0.1:{port}") as jobs:

            async def add(number: int) -> None:
                for each in range(number, count, _CONNECTIONS):
                    await jobs.add(TYPE, f"job-{each}", {"n": each})

            added = count / await _seconds(lambda: _all(add))
            many = [NewJob(f"many-{number}") for number in range(10 * count)]
            together = len(many) / await _seconds(lambda: jobs.add_many(TYPE, many))
        return [
            Figure("http_client_add", added, "/s", 200, True, "jobs added by JobsClient.add"),
            Figure("http_client_add_many", together, "/s", 4_000, True, "jobs added by JobsClient.add_many"),
        ]

    async def http_overview(self) -> list[Figure]:
        """The first page of the dashboard, with very many types and jobs: they are counted nowhere."""
        each = self.count(1_000)

        async def fill(jobs: JobsService) -> None:
            async def fill_one(type: str) -> None:
                await jobs.set_type_timeout(type, TIMEOUT)
                await jobs.add_many(type, [NewJob(str(at)) for at in range(each)])

            for start in range(0, _TYPES, 50):
                await asyncio.gather(*(fill_one(f"type-{number}") for number in range(start, start + 50)))

        async with self.daemon(fill) as (_, port):
            browser = await Plain.to(port)
            await browser.page("/")
            took = [await _seconds(lambda: browser.page("/")) for _ in range(20)]
        what = f"the dashboard's overview of {_TYPES:,} types and {_TYPES * each:,} jobs, median"
        return [Figure("http_overview_ms", statistics.median(took) * 1000, "ms", 50, False, what)]

    async def http_events(self) -> list[Figure]:
        """500 streams of events of one job, as many as a client may have: memory of each, and the last event at all."""
        wanted = min(self.count(500), 500)
        async with self.daemon() as (process, port), JobsClient(f"http://127.0.0.1:{port}") as jobs:
            await jobs.add(TYPE, "watched")
            worker = await jobs.accept(TYPE)
            assert worker is not None
            before = _memory(process.pid)
            streams: list[Plain] = []
            for start in range(0, wanted, 200):
                some = await asyncio.gather(*(_listening(port) for _ in range(min(200, wanted - start))))
                streams += some
            each = (_memory(process.pid) - before) / wanted / 1000
            began = time.perf_counter()
            await worker.finish()
            await asyncio.gather(*(stream.reader.readuntil(b'"state":"finished"') for stream in streams))
            seconds = time.perf_counter() - began
            for stream in streams:
                stream.writer.transport.abort()
        return [
            Figure("http_stream_kb", each, "kB", 30, False, f"memory of each of {wanted} streams of events"),
            Figure(
                "http_events_500_s", seconds, "s", 1.0, False, f"{wanted} streams of events are told of a job's end"
            ),
        ]


async def _all(work: Callable[[int], Awaitable[None]]) -> None:
    await asyncio.gather(*map(work, range(_CONNECTIONS)))


async def _seconds(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def _listening(port: int) -> Plain:
    """Return a stream that has been told the first event."""
    stream = await Plain.to(port)
    stream.get(f"/v1/types/{TYPE}/jobs/watched/events")
    await stream.reader.readuntil(b'"state":"running"')
    return stream


def _memory(pid: int) -> int:
    """Return the bytes that a process has of its own."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
