"""Proxies on loopback: one for HTTP (GET of whole addresses, and CONNECT), one for SOCKS 5."""

import asyncio
import ipaddress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class _Proxy:
    def __init__(self) -> None:
        self.port = 0
        self.heads: list[str] = []
        """What each connection asked for first."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


class HttpProxy(_Proxy):
    """`heads` holds the request line and the headers."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        method, target, _ = head.split(" ", 2)
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        to_reader, to_writer = await asyncio.open_connection(parts.hostname, parts.port)
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            to_writer.write(head.replace(target, target[target.index("/", 8) :], 1).encode())
        await _join(reader, writer, to_reader, to_writer)


class SocksProxy(_Proxy):
    """`heads` holds "user:password host:port"; names are resolved here."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, count = await reader.readexactly(2)
        methods = await reader.readexactly(count)
        user = b""
        if 2 in methods:
            writer.write(b"\x05\x02")
            _, length = await reader.readexactly(2)
            user = await reader.readexactly(length)
            user += b":" + await reader.readexactly((await reader.readexactly(1))[0])
            writer.write(b"\x01\x00")
        else:
            writer.write(b"\x05\x00")
        kind = (await reader.readexactly(4))[3]
        if kind == 3:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        else:
            host = str(ipaddress.ip_address(await reader.readexactly(4 if kind == 1 else 16)))
        port = int.from_bytes(await reader.readexactly(2), "big")
        self.heads.append(f"{user.decode()} {host}:{port}")
        to_reader, to_writer = await asyncio.open_connection(host, port)
        writer.write(b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
        await _join(reader, writer, to_reader, to_writer)


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    to_reader: asyncio.StreamReader,
    to_writer: asyncio.StreamWriter,
) -> None:
    async def pass_on(some: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
        while chunk := await some.read(65536):
            other.write(chunk)
            await other.drain()
        other.close()

    try:
        await asyncio.gather(pass_on(reader, to_writer), pass_on(to_reader, writer))
    finally:
        to_writer.close()
