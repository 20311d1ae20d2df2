"""Processes that begin within milliseconds: forks of one process that has imported everything and done nothing else.

`ForkServer` is the test's end; `python -m tests.system.forking MODULE` is the other. What a fork does is a function of
that module, `tests.system.workloads` unless the test says otherwise.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

_ROOT = Path(__file__).parents[2]


class ForkServer:
    """Starts, kills and waits for processes; a context manager, after which none of them is left.

    Args:
        module: has the functions that processes run.
    """

    def __init__(self, module: str = "tests.system.workloads") -> None:
        self._module = module

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.forking", self._module],
            cwd=_ROOT,
            # Forks end too abruptly to say what of the code they have run: measuring it would be in vain.
            env={name: value for name, value in os.environ.items() if name != "COVERAGE_PROCESS_CONFIG"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The end of its input makes it kill what it has forked, and end.
        self._process.communicate(timeout=60)

    def start(self, workload: str, **arguments: Any) -> int:
        """Start a function of the module in a process of its own and return the process's id."""
        return self._ask("start", workload=workload, arguments=arguments)

    def kill(self, pid: int) -> int:
        """Kill a process as the kernel does when memory runs out; when it is gone return its exit code, as `wait`."""
        os.kill(pid, signal.SIGKILL)
        return self.wait(pid)

    def wait(self, pid: int) -> int:
        """Return a process's exit code when it has ended, negative if by a signal."""
        return self._ask("wait", pid=pid)

    def _ask(self, what: str, **fields: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **fields}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def _serve(module: str) -> None:
    """Fork and wait as the test asks for, until it asks no more."""
    workloads = importlib.import_module(module)
    # A garbage collection in a fork would write to every object there is, and copy all memory.
    gc.freeze()
    alive: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if request["what"] == "start":
            answer = os.fork()
            if answer == 0:
                _run(getattr(workloads, request["workload"]), request["arguments"])
            alive.add(answer)
        else:
            _, status = os.waitpid(request["pid"], 0)
            alive.discard(request["pid"])
            answer = os.waitstatus_to_exitcode(status)
        print(answer, flush=True)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _run(workload: Any, arguments: dict[str, Any]) -> NoReturn:
    """Be the new process."""
    code = 1
    try:
        os.dup2(2, 1)  # the server's answers are not for it to disturb
        workload(**arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
