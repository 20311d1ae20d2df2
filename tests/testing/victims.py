"""A process to be killed, and its notes, for the tests of worlds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jobs_service import JobsService
from jobs_service.testing import Process, World


@asynccontextmanager
async def noted(world: World, process: Process, name: str) -> AsyncIterator[None]:
    """Note that something was entered and left, from a generator and from a plain `finally`."""
    world.note(f"enter {name}", process)
    try:
        yield
    finally:
        world.note(f"leave {name}", process)
        await asyncio.sleep(0)
        world.note(f"left {name}", process)


class Victim:
    """A program that is in the middle of a lot, and notes every line that it runs."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def __call__(self, process: Process) -> None:
        self.process = process
        loop = asyncio.get_running_loop()
        loop.call_later(3, self.note, "timer")
        async with noted(self.world, process, "outer"):
            try:
                async with process.service() as jobs, asyncio.TaskGroup() as group:
                    await jobs.set_type_timeout("t", 60)
                    group.create_task(self.beat())
                    group.create_task(self.generate())
                    group.create_task(self.follow(jobs))
                    group.create_task(self.work(jobs))
                    group.create_task(asyncio.to_thread(self.note, "thread"))
            finally:
                self.note("finally")

    def note(self, text: str) -> None:
        self.world.note(text, self.process)

    async def beat(self) -> None:
        while True:
            self.note("beat")
            try:
                await asyncio.sleep(0.01)
            finally:
                self.note("after beat")

    async def numbers(self) -> AsyncIterator[int]:
        try:
            for number in range(10**9):
                await asyncio.sleep(0.005)
                yield number
        finally:
            self.note("generator closed")
            await asyncio.sleep(0)
            self.note("generator closed, and waited")

    async def generate(self) -> None:
        async for number in self.numbers():
            self.note(f"number {number}")
            await asyncio.sleep(0.005)

    async def follow(self, jobs: JobsService) -> None:
        await jobs.add("t", "followed", if_exists="ignore")
        async for event in jobs.subscribe("t", "followed"):
            self.note(f"event {event}")

    async def work(self, jobs: JobsService) -> None:
        while True:
            job = await jobs.accept("t")
            async with noted(self.world, self.process, f"job {job}"):
                await asyncio.sleep(0.5)
