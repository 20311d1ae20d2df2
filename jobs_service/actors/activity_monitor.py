"""The activity monitor of one type: re-enqueues lost jobs, makes scheduled jobs ready, removes expired ones.

It samples the type's activity stamp several times per timeout. An ACTIVITY entry at or below a stamp that was sampled
at least one timeout ago belongs to a job that was silent for at least the timeout. Samples are at most a quarter of the
timeout apart, so a lost job is found within 1.5 timeouts.

Any of these duties may have a million jobs waiting. So the monitor works in turns: each turn does one bounded batch of
every duty that is due, lost jobs first. However many jobs come due or expire, lost ones are found in time.

The process monitor finds the jobs of processes that have died. The module has more than 600 lines because both look for
lost jobs, and samples and staggered attempts are for the monitors only.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from jobs_service.actors.context import Context, DutifulActor, log
from jobs_service.layer import changes, creation, queue, running_jobs, type_settings
from jobs_service.layer.batch_bounds import Batch, Pace, too_much_for
from jobs_service.layer.keyspace import Place, TypeKeys
from jobs_service.layer.record import JobSnapshot
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobId, JobType
from jobs_service.store.base import Transaction, Watch

CHECK_TIMEOUT: Final = "check timeout"
"""The message that the type's timeout may have changed: the next sample, which reads it, is taken at once."""

_PENDING_CHANGED: Final = "pending changed"
_SAMPLED: Final = "sampled"

_SHOWN_IDS = 10
_SILENT: Final = "their workers fell silent"
_NEVER = math.inf
_CLOCK_CHECK = 5.0
_QUEUE_HOLDOFF = 0.05
_LONGEST_IDLE: Final = 60.0
_UNREAD_FOR: Final = 60.0
"""Seconds after which a remaining row of changes has no reader left: notifiers remove their rows sooner."""
_LARGEST_BATCH: Final = 10
"""Most due or expired jobs per transaction while there are no lost jobs, as a multiple of `pending_batch`."""

# Seconds of a stagger
_FIRST: Final = 0.01
_LONGEST_STAGGER: Final = 0.25
_SHRINKS_BY: Final = 0.9

# Samples
_COARSEST = 0.25
_FINEST = 2.0**-7
_MISSING_TYPE_CHECK = 5.0
_MOST_JITTER = 10.0
"""Seconds by which a sample comes sooner at random, at most: many processes must not read at the same moment."""
_MOST_TYPES = 1000
# Bounds in seconds: shorter and longer timeouts are sampled like these.
_SHORTEST = 0.001
_LONGEST = 1e7
_AT_ONCE = -math.inf


# Attempts


class Stagger:
    """The pause before each attempt at one kind of work: services that collide over the same work take turns.

    The monitors of all services see the same jobs come due, and the same jobs lost, at the same moment. On the embedded
    store they queue for the writer; on a cluster all but one of them meet a conflict, and would meet it again with the
    next batch. A service that collides waits a random time before the next attempt, up to a bound that doubles with
    every collision and shrinks slowly without; the first service does the work, the others find it done. A service that
    never collides never waits: alone, it does everything at once.

    Args:
        uniform: draws a number between two others.
        longest: longest pause in seconds.
    """

    def __init__(self, uniform: Callable[[float, float], float], longest: float) -> None:
        self._uniform = uniform
        self._longest = longest
        self._window = 0.0

    def pause(self) -> float:
        """Return the seconds to wait before the next attempt."""
        return self._uniform(0.0, self._window) if self._window else 0.0

    def learn(self, *, collided: bool, useful: bool) -> None:
        """Adapt the pause to the outcome of an attempt.

        Args:
            collided: whether another service did the same work meanwhile.
            useful: whether any work was left. If none was, the pause has served its purpose.
        """
        if collided:
            self._window = min(self._longest, max(_FIRST, 2 * self._window))
        elif useful and self._window:
            window = self._window * _SHRINKS_BY
            self._window = window if window >= _FIRST else 0.0


class Attempt:
    """One call of `transact`, whose function may be run several times.

    Attributes:
        collided: whether the function was run again, because of another transaction on the same jobs.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs = 0

    def begin(self) -> bool:
        """Note one more run of the function; return whether it is the first one."""
        self._runs += 1
        return self._runs == 1

    @property
    def collided(self) -> bool:
        return self._runs > 1


# Samples


@dataclass(frozen=True, slots=True)
class Sample:
    """One read of a type's activity.

    Attributes:
        timeout: its activity timeout in seconds; None if the type no longer exists.
        stamp: 10-byte versionstamp of its last activity; None before any activity.
        at: the loop's time in seconds at the end of the read: the stamp is at least this old.
    """

    timeout: float | None
    stamp: bytes | None
    at: float


class Sampled:
    """One type that is sampled.

    Attributes:
        keys: of the type.
        quiet: whether the listener wants changes only; set by the listener.
    """

    __slots__ = ("_listener", "keys", "next_tick", "quiet", "removed", "stamp", "timeout")

    def __init__(self, keys: TypeKeys, listener: Callable[[Sample], None]) -> None:
        self.keys = keys
        self.quiet = False
        self.removed = False
        self.next_tick = _AT_ONCE
        self.timeout: float | None = None
        self.stamp: bytes | None = None
        self._listener = listener

    def take(self, sample: Sample) -> None:
        """Pass a sample to the listener, unless it is quiet and nothing has changed."""
        if self.quiet and sample.timeout == self.timeout and sample.stamp == self.stamp:
            return
        self.timeout = sample.timeout
        self.stamp = sample.stamp
        self._listener(sample)


class Sampler:
    """Samples for all activity monitors of a service; the type server runs it in a task linked to itself.

    Without it each of a thousand activity monitors would read its own stamp several times per timeout, mostly to find
    it unchanged. The sampler aligns the times of samples to a common grid, so that types share transactions. A monitor
    gets a sample if the type's timeout or stamp has changed, or if it waits for a stamp to become old enough.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        # Mappings to None serve as sets that keep their order, so that a simulated run can be repeated.
        self._by_tick: dict[float, dict[Sampled, None]] = {}
        self._ticks: list[float] = []
        self._hurry: asyncio.Event = asyncio.Event()

    def add(self, keys: TypeKeys, listener: Callable[[Sample], None]) -> Sampled:
        """Sample a type from now on.

        Args:
            keys: of the type.
            listener: called with samples; must not wait.
        """
        sampled = Sampled(keys, listener)
        self.hurry(sampled)
        return sampled

    def remove(self, sampled: Sampled) -> None:
        """Stop sampling a type."""
        sampled.removed = True
        self._unschedule(sampled)

    def hurry(self, sampled: Sampled) -> None:
        """Take the type's next sample at once, and pass it on even if unchanged."""
        self._unschedule(sampled)
        self._schedule(sampled, _AT_ONCE)
        sampled.quiet = False
        self._hurry.set()

    async def run(self) -> None:
        """Take samples for ever."""
        time = asyncio.get_running_loop().time
        while True:
            self._hurry.clear()
            due = self._take_due(time())
            for start in range(0, len(due), _MOST_TYPES):
                await self._sample(due[start : start + _MOST_TYPES])
            if not due:
                await self._until_next()

    async def _sample(self, due: Sequence[Sampled]) -> None:
        keys = [sampled.keys for sampled in due]
        found = await self._context.retried(
            lambda: self._context.read(lambda transaction: running_jobs.samples(transaction, keys))
        )
        now = asyncio.get_running_loop().time()
        for sampled, (timeout, stamp) in zip(due, found, strict=True):
            if sampled.removed:
                continue
            # `hurry` may have been called during the read: then the next sample stays due at once.
            if timeout != sampled.timeout and sampled.next_tick != _AT_ONCE:
                self._unschedule(sampled)
                self._schedule(sampled, self._next_tick(now, timeout))
            sampled.take(Sample(timeout, stamp, now))

    def _take_due(self, now: float) -> list[Sampled]:
        """Return the types with a due sample, and schedule the sample after it."""
        due: list[Sampled] = []
        while self._ticks and self._ticks[0] <= now:
            due += self._by_tick.pop(heapq.heappop(self._ticks))
        for sampled in due:
            self._schedule(sampled, self._next_tick(now, sampled.timeout))
        return due

    def _next_tick(self, now: float, timeout: float | None) -> float:
        """Return the time of a type's next sample: at most timeout / samples from now, less some jitter."""
        if timeout is None:
            return now + _MISSING_TYPE_CHECK
        timeout = min(max(timeout, _SHORTEST), _LONGEST)
        settings = self._context.settings
        period = timeout / settings.activity_samples
        jitter = self._context.sources.uniform(0.0, min(_MOST_JITTER, period / 4))
        grid = min(_COARSEST, max(_FINEST, 2.0 ** math.floor(math.log2(timeout / 64))))
        tick = math.floor((now + period - jitter - self._context.phase) / grid) * grid + self._context.phase
        return tick if tick > now else tick + grid

    def _schedule(self, sampled: Sampled, tick: float) -> None:
        sampled.next_tick = tick
        group = self._by_tick.get(tick)
        if group is None:
            group = self._by_tick[tick] = {}
            heapq.heappush(self._ticks, tick)
        group[sampled] = None

    def _unschedule(self, sampled: Sampled) -> None:
        group = self._by_tick.get(sampled.next_tick)
        if group is not None:
            group.pop(sampled, None)

    async def _until_next(self) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_at(self._ticks[0], self._hurry.set) if self._ticks else None
        try:
            await self._hurry.wait()
        finally:
            if timer is not None:
                timer.cancel()


# The monitor


class _Unread(NamedTuple):
    """The type's rows that notifiers may still read.

    Attributes:
        oldest: key of the oldest row of changes.
        followed: the value of FOLLOWED.
        stamp: the type's activity stamp.
        has_left: whether there are last records of jobs that have left.
    """

    oldest: bytes | None
    followed: bytes | None
    stamp: bytes | None
    has_left: bool


class ActivityMonitor(DutifulActor):
    """Watches over the running, scheduled and expiring jobs of one type.

    Args:
        context: the service's.
        keys: of the type.
        sampler: shared by all monitors.
        note_idle: called with the type's keys when the type has been idle for a while, and repeatedly while it stays
            idle.

    Attributes:
        keys: of the type.
    """

    def __init__(
        self, context: Context, keys: TypeKeys, sampler: Sampler, note_idle: Callable[[TypeKeys], None]
    ) -> None:
        super().__init__(f"activity monitor {keys.name}", context, type=keys.type)
        self.keys = keys
        self._note_idle = note_idle
        self._idle_after = context.settings.type_idle_after
        self._idle_at = 0.0
        self._sampler = sampler
        # Lost jobs
        self._timeout: float | None = None
        self._history: deque[Sample] = deque()
        # No running job was last active at or before this stamp.
        self._clean = b""
        self._lost_pace = Pace(Batch.of(context.store.limits, jobs=context.settings.activity_batch))
        self._sample: Sample | None = None
        # The stamp at or below which running jobs are lost, and the timeout that says so.
        self._lost: tuple[bytes, float] | None = None
        self._lost_at = 0.0
        self._lost_stagger = Stagger(context.sources.uniform, _LONGEST_STAGGER)
        # Scheduled jobs
        self._watch: Watch | None = None
        self._queue_at = 0.0
        self._next_run_at = _NEVER
        self._due_at: float | None = None
        self._due_stagger = Stagger(context.sources.uniform, _LONGEST_STAGGER)
        # Finished jobs that expire
        self._stamp: bytes | None = None
        self._expired_at = 0.0
        self._expiry_at = 0.0
        # Rows of changes and of jobs that have left, without a remaining reader
        self._unread: _Unread | None = None
        self._unread_at = 0.0
        # While last records are removed: the versionstamp up to which that is done, and the row to continue behind.
        self._last_records: tuple[bytes, bytes] | None = None
        most = _LARGEST_BATCH * context.settings.pending_batch
        self._pace = Pace(Batch.of(context.store.limits, jobs=most))

    async def init(self) -> None:
        await super().init()
        self._queue_at = self._expired_at = self._expiry_at = self._time()
        self._idle_at = self._time() + self._idle_after
        self._unread_at = self._time() + _UNREAD_FOR
        self._sampled = self._sampler.add(self.keys, self._keep_sample)

    async def run(self) -> None:
        while True:
            message = await self.receive(self._wait())
            if message is not None:
                await self._take(message)
            await self._take_turn()

    async def terminate(self) -> None:
        self._sampler.remove(self._sampled)
        if self._watch is not None:
            self._watch.cancel()

    def _wait(self) -> float:
        """Return the seconds until the next duty is due."""
        if self._last_records is not None:
            return 0.0
        now = self._time()
        wait = min(self._queue_at, self._expiry_at, self._idle_at, self._unread_at) - now
        if self._lost is not None:
            wait = min(wait, self._lost_at - now)
        if self._due_at is not None:
            wait = min(wait, self._due_at - now)
        elif self._next_run_at != _NEVER:
            # The wall clock may be set forward or back: sleep by the loop's clock, and compare every few seconds.
            wait = min(wait, self._next_run_at - self._context.sources.wall_time(), _CLOCK_CHECK)
        return wait

    async def _take(self, message: object) -> None:
        if message == _SAMPLED:
            sample, self._sample = self._sample, None
            assert sample is not None
            if sample.stamp != self._stamp:
                # Jobs have changed; a finished one may expire.
                self._stamp = sample.stamp
                self._idle_after = self._context.settings.type_idle_after
                self._idle_at = self._time() + self._idle_after
                period = self._context.settings.expiry_check_period
                self._expiry_at = min(self._expiry_at, self._expired_at + period)
            self._check(sample)
        elif message == _PENDING_CHANGED:
            self._queue_at = min(self._queue_at, self._time() + _QUEUE_HOLDOFF)
        elif message == CHECK_TIMEOUT:
            self._sampler.hurry(self._sampled)
        else:
            await self.handle(message)

    async def _take_turn(self) -> None:
        """Do one batch of every due duty."""
        if self._lost is not None and self._lost_at <= self._time():
            await self._re_enqueue(*self._lost)
        if self._due_at is None and self._next_run_at <= self._context.sources.wall_time():
            self._due_at = self._time() + self._due_stagger.pause()
        if self._due_at is not None and self._due_at <= self._time():
            await self._make_ready()
        if self._queue_at <= self._time():
            await self._watch_queue()
        if self._expiry_at <= self._time():
            await self._remove_expired()
        if self._unread_at <= self._time():
            await self._drop_unread()
        if self._last_records is not None:
            await self._remove_last_records(*self._last_records)
        if self._idle_at <= self._time():
            # A job that runs for hours shows no activity but heartbeats: check less and less often.
            self._idle_after = min(2 * self._idle_after, max(_LONGEST_IDLE, self._idle_after))
            self._idle_at = self._time() + self._idle_after
            self._note_idle(self.keys)

    # Lost jobs

    def _keep_sample(self, sample: Sample) -> None:
        """Keep only the newest sample: the sampler goes on while this monitor waits for the store."""
        if self._sample is None:
            self.cast(_SAMPLED)
        self._sample = sample

    def _check(self, sample: Sample) -> None:
        """Find the newest stamp that is at least one timeout old: running jobs at or below it are lost."""
        history = self._history
        if sample.timeout != self._timeout:
            self._timeout = sample.timeout
            history.clear()
            self._lost = None
            self._look_for_expired_without_samples()
        if sample.timeout is None:
            return
        # An unchanged stamp is in the list already, with an earlier time: keep the earlier, it proves a longer silence.
        if sample.stamp is not None and (not history or history[-1].stamp != sample.stamp):
            history.append(sample)
        silent_since = sample.at - sample.timeout
        while len(history) > 1 and history[1].at <= silent_since:
            history.popleft()
        if history and history[0].at <= silent_since:
            stamp = history[0].stamp
            assert stamp is not None
            if stamp > self._clean:
                self._lost = stamp, sample.timeout
        self._be_quiet_if_clean()

    def _be_quiet_if_clean(self) -> None:
        """Ask the sampler for changes only, unless a running job could become lost by the mere passing of time."""
        history = self._history
        self._sampled.quiet = not history or (history[-1].stamp or b"") <= self._clean

    async def _re_enqueue(self, until: bytes, timeout: float) -> None:
        """Re-enqueue one batch of the jobs at or below a stamp."""
        attempts: list[Attempt] = []  # one for each size: half of a batch that was too much has not been tried before

        def attempt(size: int) -> Awaitable[running_jobs.TaskPart | None]:
            attempts.append(Attempt())
            return self._take_for_lost(until, timeout, size, attempts[-1])

        batch = await self._lost_pace.fitting(attempt)
        collided = any(each.collided for each in attempts)
        self._lost_stagger.learn(collided=collided, useful=batch is not None and bool(batch.ids))
        self._lost_at = self._time() + self._lost_stagger.pause()
        if batch is None:
            # The type's timeout was changed: silence is measured anew against the new one.
            self._lost = None
            return
        if batch.ids:
            self._log.warning("jobs_lost", count=len(batch.ids), ids=batch.ids[:_SHOWN_IDS], reason=_SILENT)
        if batch.more:
            return
        # A heartbeat moves an entry to a newer stamp, never to an older one: no entry at or below this one will appear.
        self._lost = None
        self._clean = until
        self._be_quiet_if_clean()

    async def _take_for_lost(
        self, until: bytes, timeout: float, size: int, attempt: Attempt
    ) -> running_jobs.TaskPart | None:
        """Re-enqueue one batch; return None if the type's timeout has changed since silence was measured."""
        keys = self.keys

        async def take(unit: UnitOfWork) -> running_jobs.TaskPart | None:
            attempt.begin()
            # Do not read the activity stamp: each heartbeat of the type changes it, so that on a busy type this
            # transaction would conflict for ever. The entries that are read conflict for the jobs that matter.
            present = await type_settings.timeout_if_any(unit.transaction, keys)
            own = self._context.own_runs.get(keys.packed, ())
            return await running_jobs.re_enqueue(unit, keys, until, size, own) if present == timeout else None

        return await self._transact(take, too_much_for(size))

    # Scheduled jobs

    async def _watch_queue(self) -> None:
        """Set a watch on the type's queue; read when the next scheduled job is due, and the type's timeout."""
        if self._watch is not None:
            self._watch.cancel()

        async def read(transaction: Transaction) -> tuple[float | None, float | None, Watch]:
            watch = transaction.watch(self.keys.watch_pending)
            timeout = await type_settings.timeout_if_any(transaction, self.keys)
            return await queue.next_scheduled(transaction, self.keys), timeout, watch

        run_at, timeout, watch = await self._read(read)
        if timeout != self._timeout:
            # The old timeout set the rhythm of samples; a shorter one cannot wait for the next of them.
            self._sampler.hurry(self._sampled)
        self._queue_at = _NEVER
        self._watch = watch
        watch.on_fire(lambda: self.cast(_PENDING_CHANGED))
        self._next_run_at = _NEVER if run_at is None else run_at

    async def _make_ready(self) -> None:
        """Make a batch of due jobs ready, unless another service is doing so."""
        keys = self.keys
        attempts: dict[int, Attempt] = {}  # by size: half of a batch that was too much has not been tried before

        async def move(unit: UnitOfWork, size: int) -> int:
            # Run again after a conflict: another service moves the same jobs. Look again after a pause.
            is_first = attempts.setdefault(size, Attempt()).begin()
            return await queue.make_ready(unit, keys, unit.now, size) if is_first else 0

        moved = await self._one_batch(move)
        self._due_at = None
        self._due_stagger.learn(collided=any(each.collided for each in attempts.values()), useful=moved > 0)
        if moved:
            self._log.debug("jobs_due", count=moved)
        # There may be more than one batch.
        self._queue_at = self._time()

    # Finished jobs

    async def _remove_expired(self) -> None:
        """Remove a batch of expired jobs. A read comes first: most of the time there are none, and a read is cheap."""
        keys = self.keys
        expiry = await self._read(lambda transaction: creation.next_expiry(transaction, keys))
        self._expired_at = self._time()
        if expiry is None:
            self._expiry_at = _NEVER
            self._look_for_expired_without_samples()
        elif expiry > self._context.sources.wall_time():
            self._expiry_at = self._expired_at + self._context.settings.expiry_check_period
        else:
            removed = await self._one_batch(lambda unit, size: creation.remove_expired(unit, keys, unit.now, size))
            self._log.debug("jobs_expired", count=removed)
            self._expiry_at = self._time()

    def _look_for_expired_without_samples(self) -> None:
        """Look for expired jobs after a period, if the next sample would come too late to report finished jobs."""
        settings = self._context.settings
        period = settings.expiry_check_period
        if self._timeout is not None and self._timeout > settings.activity_samples * period:
            self._expiry_at = min(self._expiry_at, self._expired_at + period)

    # Rows whose readers have read them, or died

    async def _drop_unread(self) -> None:
        """Remove rows that all readers had time to read, and rows of dead readers: see `layer/changes.py`."""
        keys = self.keys
        before, now = self._unread, await self._read(self._read_unread)
        self._unread, self._unread_at = now, self._time() + _UNREAD_FOR
        if before is None:
            return
        oldest, followed = now.oldest, now.followed
        if followed is not None and followed == before.followed and changes.is_in_doubt(followed):
            await self._transact(lambda unit: changes.forget(unit.transaction, keys, followed))
        elif oldest is not None and oldest == before.oldest:
            await self._transact(lambda unit: changes.give_up(unit.transaction, keys, unit.sources, oldest))
        if now.has_left and before.stamp is not None:
            self._last_records = before.stamp, keys.last

    async def _read_unread(self, transaction: Transaction) -> _Unread:
        keys = self.keys
        oldest = await changes.oldest(transaction, keys)
        followed, stamp = await transaction.get_many((keys.followed, keys.watch_activity))
        return _Unread(oldest, followed, stamp, await changes.has_last_records(transaction, keys))

    async def _remove_last_records(self, until: bytes, behind: bytes) -> None:
        """Remove a batch of the last records of jobs that have left."""
        keys = self.keys
        last: bytes | None = None

        async def remove(unit: UnitOfWork, size: int) -> int:
            nonlocal last
            looked_at, last = await changes.remove_last_records(unit.transaction, keys, until, behind, size)
            return looked_at

        await self._one_batch(remove)
        self._last_records = None if last is None else (until, last)

    async def _one_batch(self, work: Callable[[UnitOfWork, int], Awaitable[int]]) -> int:
        """Do one batch of a duty that can wait; a small batch while there are lost jobs.

        Args:
            work: takes a unit of work and the largest number of jobs; returns the number of jobs that it did.
        """
        if self._lost is not None:
            self._pace.size = min(self._pace.size, self._context.settings.pending_batch)

        def attempt(size: int) -> Awaitable[int]:
            return self._transact(lambda unit: work(unit, size), too_much_for(size))

        return await self._pace.fitting(attempt)


# Jobs of dead processes


_PAGE: Final = 250
"""Running jobs that one transaction reads: so many of the largest records are within its limits."""


class ProcessMonitor(DutifulActor):
    """Finds store instances of dead processes, and re-enqueues the jobs that they held.

    Args:
        context: the service's.
    """

    def __init__(self, context: Context) -> None:
        super().__init__("process monitor", context)
        self._pace = Pace(Batch.of(context.store.limits))

    async def run(self) -> None:
        context = self._context
        period = context.settings.process_check_period
        pause = context.sources.uniform(0.0, period)
        while True:
            message = await self.receive(pause)
            if message is not None:
                await self.handle(message)
            dead = await context.retried(context.store.dead_instances)
            pause = period
            if dead:
                await self._bury(frozenset(dead))
                pause = 0.0  # Processes are often killed together: check again at once.

    async def _bury(self, dead: frozenset[bytes]) -> None:
        """Re-enqueue all jobs that dead instances hold, then forget the instances.

        If this process dies half way, another process finds the same instances and does the rest.
        """
        context = self._context
        held, after = await self._held(dead, None)
        await self._re_enqueue(held, dead)
        while after is not None:
            held, after = await self._held(dead, after)
            await self._re_enqueue(held, dead)
        await context.retried(lambda: context.store.forget_instances([*dead]))
        log.debug("processes_died", count=len(dead))

    async def _held(self, dead: frozenset[bytes], after: bytes | None) -> tuple[list[Place], bytes | None]:
        """Read one page of running jobs; return those of dead instances, and the page's last key, None at the end."""
        keyspace = self._context.keyspace
        return await self._read(lambda transaction: running_jobs.held_jobs(transaction, keyspace, dead, after, _PAGE))

    async def _re_enqueue(self, held: Sequence[Place], dead: frozenset[bytes]) -> None:
        """Re-enqueue jobs that dead instances still hold, as many per transaction as fit."""
        while held:
            lost, dealt_with = await self._pace.fitting(partial(self._take, held, dead))
            self._log_lost(lost)
            held = held[dealt_with:]

    async def _take(self, held: Sequence[Place], dead: frozenset[bytes], most: int) -> tuple[list[JobSnapshot], int]:
        async def take(unit: UnitOfWork) -> tuple[list[JobSnapshot], int]:
            lost, dealt_with = await running_jobs.take_from(unit, held[:most], dead)
            return [entry.seen() for entry in lost], dealt_with

        return await self._transact(take, too_much_for(min(most, len(held))))

    def _log_lost(self, lost: list[JobSnapshot]) -> None:
        ids: defaultdict[JobType, list[JobId]] = defaultdict(list)
        for seen in lost:
            ids[seen.keys.type].append(seen.id)
        for type, some in ids.items():
            log.warning("jobs_lost", type=type, count=len(some), ids=some[:_SHOWN_IDS], reason="their process died")
