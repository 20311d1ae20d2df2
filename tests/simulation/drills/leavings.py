"""What handlers do whose process is left, and what follows for their jobs, by the page on handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from jobs_service import JobCanceled, Outcome, Snooze
from tests.simulation.drills.drill import Drill

BACKOFF: Final = 1.5
SAME: Final = 0.02
"""Seconds within which happens what happens at a time."""
_POLL: Final = 0.15
_EVER: Final = 600.0
_ENDED: Final = "its runner ended"


class Leaving:
    """One job whose handler runs as its process is left.

    Args:
        leavings: knows when that is.
        letter: of its type: "a" of coroutine functions, "p" of plain ones.
        how: what it does: how it waits for its end, and what then.

    Attributes:
        id: of the job.
        began: when its handler began; None before.
        ended: when that has ended; None before. `is_over` is set then.
        asked: when it was asked to end, each time.
        outcome, result: of the job; the outcome is None where it is to run again.
        again: when it is to run again; None where it is not. `attempts`: as which number.
        detail: of its history, where it was given back.
        removed_after: seconds after which somebody removes it; 0 for nobody.
        removed, told_by: when that was, and when the handler must have been told.
        ignored: what is to be said of a handler that does not end.
    """

    def __init__(self, leavings: Leavings, letter: str, how: tuple[str, str]) -> None:
        self._leavings = leavings
        self._drill = leavings.drill
        self.letter = letter
        self._first, self._then = how
        self.id = " ".join(how)
        self.began: float | None = None
        self.ended: float | None = None
        self.is_over = asyncio.Event()
        self.asked: list[float] = []
        self.outcome: Outcome | None = None
        self.result: Any = None
        self.again: float | None = None
        self.attempts = 1
        self.detail: str | None = None
        self.removed_after = 0.3 * self.grace if self._first == "is removed" else 0.0
        self.removed = self.told_by = 0.0
        self.ignored: tuple[str, float] | None = None

    @property
    def grace(self) -> float:
        """How long it may take to end, seconds."""
        return self._leavings.graces[self.letter]

    def wrong(self, what: str) -> None:
        """Complain of it."""
        self._drill.complain(f"{self.id!r} with a grace of {self.grace} s, left at {self._leavings.at:.3f}: {what}")

    def _begins(self) -> None:
        if self.began is not None or self._leavings.has_begun:
            self.wrong("begins, and its process has been left")
        self.began = self._drill.time()

    # Coroutine functions

    async def run(self, job: Any) -> Any:
        """Do what a coroutine function does."""
        self._begins()
        try:
            return await self._run(job)
        except asyncio.CancelledError:
            if not self.asked:
                self.asked.append(self._drill.time())
            raise
        finally:
            self.ended = self._drill.time()
            self.is_over.set()

    async def _run(self, job: Any) -> Any:
        if self._first == "ends":
            await self._leavings.leaving.wait()
            # An operation on the job takes a while, too.
            latest = 0.3 if self._then == "finishes" else 0.95
            await asyncio.sleep(self._drill.random.choice([0.0, 0.3, latest]) * self.grace)
        else:
            try:
                await asyncio.sleep(_EVER)
            except asyncio.CancelledError:
                self.asked.append(self._drill.time())
                if self._first == "is removed":
                    self.outcome = Outcome.CANCELED
                    await asyncio.sleep(self._drill.random.choice([0.0, 0.5]) * self.grace)
                    raise
        return await self._end(job)

    async def _end(self, job: Any) -> Any:
        drill, now = self._drill, self._drill.time()
        match self._then:
            case "raises" | "spends":
                if self._then == "spends":
                    await asyncio.sleep(0.7 * self.grace)
                self._is_given_back(drill.time())
                raise asyncio.CancelledError
            case "fails":
                self._fails(now)
                raise ValueError("on leaving")
            case "snoozes":
                self.again, self.detail = now + 1.0, "snoozed for 1 s"
                raise Snooze(1.0)
            case "finishes":
                self.outcome, self.result = Outcome.SUCCEEDED, {"own": 1}
                await job.finish(result={"own": 1})
                return None
            case "is deaf":
                until = now + self.grace + self._drill.random.choice([0.3, 1.0])
                self._is_given_up(now + self.grace)
                while (left := until - drill.time()) > 0:
                    try:
                        await asyncio.sleep(left)
                    except asyncio.CancelledError:
                        self.asked.append(drill.time())
        if self.again is None:
            self.outcome, self.result = Outcome.SUCCEEDED, {"late": self.id}
        return {"late": self.id}

    def _is_given_back(self, at: float) -> None:
        self.again, self.detail = at, _ENDED

    def _is_given_up(self, at: float) -> None:
        self.again, self.detail, self.ignored = at, _ENDED, ("ending", self.grace)

    def _fails(self, at: float) -> None:
        self.again, self.attempts = at + BACKOFF, 2

    # Plain functions

    def think(self, job: Any) -> Any:
        """Do what a plain function does."""
        self._begins()
        try:
            return self._think(job)
        finally:
            self.ended = self._drill.time()
            self.is_over.set()

    def _think(self, job: Any) -> Any:
        drill, stage = self._drill, self._drill.run.stage
        if self._first == "waits":
            if not job.wait_for_stop(_EVER):
                self.wrong("is not told to stop")
            self.asked.append(drill.time())
        else:
            while not (job.stopping if self._first == "looks" else self._leavings.has_begun):
                stage.sleep(_POLL)
            if self._first == "looks":
                self.asked.append(drill.time())
        left = self._leavings.at
        match self._then:
            case "fails":
                self._fails(drill.time())
                raise ValueError("on leaving")
            case "goes on":
                stage.sleep(max(0.0, left + 0.4 * self.grace - drill.time()))
                job.progress(1, 2)
                if drill.random.random() < 0.5:
                    self.outcome, self.result = Outcome.SUCCEEDED, {"own": 1}
                    job.finish(result={"own": 1})
                    return None
            case "is late":
                stage.sleep(max(0.0, left + 1.3 * self.grace - drill.time()))
                try:
                    job.progress(1, 2)
                    self.wrong("may go on with its job after its grace")
                except JobCanceled:
                    if drill.random.random() < 0.5:
                        self._is_given_back(drill.time())
                        raise
                if drill.random.random() < 0.5:
                    self._is_given_back(drill.time())
                    return None
            case "is deaf":
                self._is_given_up(left + 2 * self.grace)
                stage.sleep(max(0.0, left + 2 * self.grace + 0.4 - drill.time()))
                return {"of no": "use"}
            case "returns nothing":
                if self._first != "is blind":
                    self._is_given_back(drill.time())
                    return None
                self.outcome = Outcome.SUCCEEDED
                return None
        self.outcome, self.result = Outcome.SUCCEEDED, {"late": self.id}
        return {"late": self.id}

    # What must have been so

    def check_asked(self) -> None:
        """It was asked to end when it should, and as often."""
        at = self._leavings.at
        if self.removed:
            if not self.asked or not self.removed <= self.asked[0] <= self.told_by:
                self.wrong(f"was removed at {self.removed:.3f}, and told at {self.asked}")
            return
        match self._first:
            case "waits" if self.letter == "p":
                wanted, late = [at], 0.0
            case "looks":
                wanted, late = [at], _POLL
            case "continuous":
                wanted, late = [at], 0.0
            case "hangs":
                wanted, late = [at + self.grace], 0.0
            case _:
                wanted, late = [], 0.0
        if self.ignored is not None and self.letter == "a":
            # Who goes on is canceled once more as it is given up; without a grace that may be the same moment.
            wanted += [wanted[0] + self.grace] if self.grace or len(self.asked) > 1 else []
        fits = [want - SAME <= asked <= want + late + SAME for want, asked in zip(wanted, self.asked, strict=False)]
        if len(self.asked) != len(wanted) or not all(fits):
            self.wrong(f"was asked to end at {self.asked}, not {wanted}")


class Leavings:
    """All that is known of those whose process is left.

    Args:
        drill: that they are part of.
        graces: of their handlers, by the letter of their type.

    Attributes:
        drill, graces: as given.
        at: when the process was left.
        leaving: set then.
    """

    def __init__(self, drill: Drill, graces: Mapping[str, float]) -> None:
        self.drill = drill
        self.graces = graces
        self.at = 0.0
        self.leaving = asyncio.Event()
        self._several: list[str] = []
        self._last = 0.0
        self._cases: list[Leaving] = []

    def some(self, most: int) -> list[Leaving]:
        """Return some jobs, each of another kind."""
        # Without any grace it is not known whether a handler ends before it is given up.
        acts = ["raises", "spends", "returns", "fails", "snoozes", "finishes", "is deaf"]
        of_coroutines = [(first, then) for first in ("hangs", "continuous") for then in acts]
        of_coroutines += [("ends", then) for then in ("returns", "fails", "snoozes", "finishes")]
        if self.graces["a"] >= 2.0:
            of_coroutines.append(("is removed", "by somebody"))
        if not self.graces["a"]:
            of_coroutines = [(first, then) for first in ("hangs", "continuous") for then in ("raises", "is deaf")]
        acts = ["returns", "returns nothing", "fails", "goes on", "is late", "is deaf"]
        of_threads = [(first, then) for first in ("waits", "looks") for then in acts]
        of_threads += [("is blind", "returns"), ("is blind", "returns nothing")]
        kinds = [("a", how) for how in of_coroutines]
        if self.drill.random.random() < 0.5:  # threads take their time
            kinds += [("p", how) for how in of_threads]
        if self.graces["p"] <= 3 * _POLL + 0.1:  # who looks now and then sees it too late
            kinds = [kind for kind in kinds if kind[1][0] not in ("looks", "is blind")]
        self._cases = [Leaving(self, *kind) for kind in self.drill.random.sample(kinds, min(most, len(kinds)))]
        return self._cases

    @property
    def has_begun(self) -> bool:
        """Whether the process is left."""
        return self.leaving.is_set()

    def begin(self) -> None:
        """The process is left now."""
        self.at = self.drill.time()
        self.leaving.set()

    async def one_of_several(self, job: Any) -> None:
        """Be the only one that runs of its type, until shortly after its process is left."""
        self._several.append(str(job.id))
        if self._several != ["1"]:
            self.drill.complain(f"{self._several} have run, and there is one slot; left at {self.at:.3f}")
        await self.leaving.wait()
        # At the same moment the other one might begin before anybody has noticed that the process is left.
        await asyncio.sleep(self.drill.random.choice([0.1, 0.6]) * self.graces["c"])
        self._last = self.drill.time()

    def seconds_until_all_have_left(self) -> float:
        """Return how long it takes until the last handler has ended, or was given up for good."""
        left = [self._last - self.at]
        for case in self._cases:
            ended = 2 * case.grace if case.ended is None else case.ended - self.at
            left.append(min(ended, 2 * case.grace))
        return max(left)

    async def all_are_over(self) -> None:
        """Wait for those that go on although nobody waits for them any more."""
        for case in self._cases:
            try:
                async with asyncio.timeout(2 * case.grace + 2.0):
                    await case.is_over.wait()
            except TimeoutError:
                case.wrong("does not end")
