"""Two containers that share a PID namespace and a store, as a pod's do; one after the other is killed and starts again.

`python -m tests.system.pod STORE KILLS` is the first process of the namespace. It prints the size of the store's file
when half of the kills were done, its size at the end, and the ids of the jobs that are there, all on one line.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Final

from jobs_service import JobsService, Settings

TYPE: Final = "pod"
SAME: Final = 100
"""Jobs that each container adds and removes again and again: the file has no reason to grow."""
_STEPS: Final = 3
"""Rounds that a container does before it may be killed."""


async def work(address: str, name: str) -> None:
    """Add one job that stays, then add, read and remove the same others, until killed; print each job that stays."""
    async with JobsService(address, settings=Settings(durable=False)) as jobs:
        await jobs.set_type_timeout(TYPE, 3600)
        for number in itertools.count():
            id = f"{name}-stays-{os.getpid()}-{number}"
            await jobs.add(TYPE, id, None)
            print(id, flush=True)
            same = [f"{name}-{each}" for each in range(SAME)]
            await asyncio.gather(*[jobs.add(TYPE, each, "x" * 300, if_exists="ignore") for each in same])
            await asyncio.gather(*[jobs.get(TYPE, each) for each in same])
            await asyncio.gather(*[jobs.remove(TYPE, each) for each in same])


class _Container:
    """One program in namespaces of its own, but for that of its processes.

    Attributes:
        answered: the jobs that it was told are there, as far as it was heard.
    """

    def __init__(self, store: Path, name: str) -> None:
        command = [sys.executable, "-m", "tests.system.pod", f"lmdb:{store}", name, "work"]
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--uts", "--ipc", *command], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self.answered: list[str] = []

    def wait_for_rounds(self) -> None:
        """Wait until it has done some."""
        for _ in range(_STEPS):
            line = self._output.readline()
            assert line, "a container has ended by itself"
            self.answered.append(line.strip())

    def kill(self) -> None:
        """Kill it, and hear what it has said."""
        self._process.kill()
        # What it had begun to say as it was killed counts as not said.
        self.answered += [line.strip() for line in self._output if line.endswith("\n")]
        self._process.wait()


def main(store: Path, kills: int) -> None:
    """Run the pod."""
    assert os.getpid() == 1
    chosen = random.Random(1)
    names = ("web", "worker")
    containers = [_Container(store, name) for name in names]
    ended: list[_Container] = []
    sizes = []
    for kill in range(kills):
        for each in containers:
            each.wait_for_rounds()
        place = chosen.randrange(len(containers))
        containers[place].kill()
        ended.append(containers[place])
        if kill in (kills // 2, kills - 1):
            sizes.append((store / "data.mdb").stat().st_size)
        containers[place] = _Container(store, names[place])
    for each in containers:
        each.kill()
    print(*sizes, *(id for each in (*ended, *containers) for id in each.answered))


if __name__ == "__main__":
    if sys.argv[3:] == ["work"]:
        asyncio.run(work(sys.argv[1], sys.argv[2]))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]))
