"""A plain, synchronous model of OTP's supervisor.erl with permanent children (init, restart, try_again, intensity).

It has no tasks and no time, and writes the same trace as the probes do. What the two strategies and failing starts lead
to is derived here from supervisor.erl's own structure (messages in a queue, a state per child), not from the code under
test.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from jobs_service.supervision import Strategy


@dataclass
class ModelChild:
    """A child specification with its pid: None (undefined), "restarting", or a number."""

    name: str
    pid: int | str | None = None


@dataclass
class OtpSupervisor:
    """One supervisor with fixed children.

    Attributes:
        trace: events as in `Trace.starts_and_stops`.
        failing_starts: as in `Trace`.
        gave_up: the child on account of which it gave up, once it has.
        failed_start: the child whose start failed during the supervisor's own.
    """

    children: list[ModelChild]
    strategy: Strategy
    max_restarts: int
    period: float
    failing_starts: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)
    gave_up: str | None = None
    failed_start: str | None = None
    _queue: deque[tuple[str, str, int]] = field(default_factory=deque)
    _tries: dict[str, int] = field(default_factory=dict)
    _pids: int = 0

    @property
    def alive(self) -> list[str]:
        return [child.name for child in self.children if isinstance(child.pid, int)]

    def start(self) -> None:
        """init/1: a failed start ends the supervisor."""
        for child in self.children:
            if not self._start_child(child):
                self.failed_start = child.name
                self._terminate(self.children)
                return

    def die(self, deaths: list[tuple[str, str]], now: float) -> None:
        """Let children die at the same moment, each of a "crash" or a "return", and handle what follows."""
        for name, how in deaths:
            child = self._find(name)
            assert child is not None
            assert isinstance(child.pid, int)
            self.trace.append(f"{how} {name}")
            self._queue.append((how, name, child.pid))
            child.pid = -child.pid  # dead, but the supervisor does not know yet
        while self._queue and self.gave_up is None:
            self._handle(*self._queue.popleft(), now)

    def stop(self) -> None:
        self._terminate(self.children)

    def _handle(self, what: str, name: str, pid: int, now: float) -> None:
        child = self._find(name)
        if what == "try_again":
            if child is not None and child.pid == "restarting" and self._tries[name] == pid:
                self._restart(child, now)
        elif child is not None and child.pid == -pid:  # else the pid is not found: an end that was seen to already
            self._restart(child, now)

    def _restart(self, child: ModelChild, now: float) -> None:
        self.restarts = [now, *(time for time in self.restarts if time >= now - self.period)]
        if len(self.restarts) > self.max_restarts:
            self.gave_up = child.name
            child.pid = None
            self._terminate(self.children)
        elif self.strategy is Strategy.ONE_FOR_ONE:
            if not self._start_child(child):
                self._try_again(child)
        else:
            after = self.children[self.children.index(child) :]
            self._terminate(after)
            for one in after:
                if not self._start_child(one):
                    self._try_again(one)
                    return

    def _try_again(self, child: ModelChild) -> None:
        child.pid = "restarting"
        self._tries[child.name] = self._pids
        self._queue.append(("try_again", child.name, self._pids))

    def _start_child(self, child: ModelChild) -> bool:
        self._pids += 1
        if self.failing_starts[child.name] > 0:
            self.failing_starts[child.name] -= 1
            self.trace.append(f"fail {child.name}")
            child.pid = None
            return False
        self.trace.append(f"start {child.name}")
        child.pid = self._pids
        return True

    def _terminate(self, children: list[ModelChild]) -> None:
        for child in reversed(children):
            if isinstance(child.pid, int) and child.pid > 0:
                self.trace.append(f"stop {child.name}")
            child.pid = None

    def _find(self, name: str) -> ModelChild | None:
        return next((child for child in self.children if child.name == name), None)
