"""The server as a process of its own: `python -m tests.replication.server [PORT]` prints its address and runs."""

import asyncio
import contextlib
import sys

from tests.replication.server.server import Server


async def _run(port: int) -> None:
    async with Server(port=port) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(_run(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
