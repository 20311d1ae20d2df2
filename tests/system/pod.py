"""Two containers that share a PID namespace and a store, as a pod's do; one after the other is killed and starts again.

`python -m tests.system.pod STORE JOURNALS KILLS` is the first process of the namespace. It prints how large the store's
file was when half of the kills were done, and at the end.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Final, TextIO

from jobs_service import JobsService, Settings

TYPE: Final = "pod"
SAME: Final = 100
"""Jobs that each container adds and removes again and again: the file has no reason to grow."""
_STEPS: Final = 3
"""Rounds that a container does before it may be killed."""


async def work(address: str, noted: TextIO, name: str) -> None:
    """Add one job that stays, remove and add the same others, and read all, until killed; note each job that stays."""
    async with JobsService(address, settings=Settings(durable=False)) as jobs:
        await jobs.set_type_timeout(TYPE, 3600)
        for number in itertools.count():
            id = f"{name}-stays-{os.getpid()}-{number}"
            await jobs.add(TYPE, id, None)
            noted.write(id + "\n")
            same = [f"{name}-{each}" for each in range(SAME)]
            await asyncio.gather(*[jobs.add(TYPE, each, "x" * 300, if_exists="ignore") for each in same])
            await asyncio.gather(*[jobs.get(TYPE, each) for each in same])
            await asyncio.gather(*[jobs.remove(TYPE, each) for each in same])


def _container(address: str, journal: Path, name: str) -> subprocess.Popen[bytes]:
    """Start one program in namespaces of its own, but for that of its processes."""
    journal.touch()
    command = [sys.executable, "-m", "tests.system.pod", "work", address, str(journal), name]
    return subprocess.Popen(["unshare", "--mount", "--uts", "--ipc", *command])


def _lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n")


def main(store: Path, journals: Path, kills: int) -> None:
    """Run the pod."""
    assert os.getpid() == 1
    chosen = random.Random(1)
    names = ("web", "worker")
    running = {name: _container(f"lmdb:{store}", journals / name, name) for name in names}
    for kill in range(kills):
        for name in names:
            before = _lines(journals / name)
            while _lines(journals / name) < before + _STEPS:
                assert running[name].poll() is None, f"{name} has ended by itself"
                os.sched_yield()
        victim = chosen.choice(names)
        running[victim].kill()
        running[victim].wait()
        if kill in (kills // 2, kills - 1):
            print((store / "data.mdb").stat().st_size, flush=True)
        running[victim] = _container(f"lmdb:{store}", journals / victim, victim)
    for container in running.values():
        container.kill()
        container.wait()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        with open(sys.argv[3], "a", buffering=1) as journal:
            asyncio.run(work(sys.argv[2], journal, sys.argv[4]))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
