"""Periodic jobs: one per tick however many services run, whatever their clocks do; in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import fdb.tuple
import pytest
from structlog.testing import capture_logs

from jobs_service import InvalidJob, InvalidSettings, JobsService, JobState, RunningJob, Settings
from jobs_service.errors import StoreDamaged, TransactionTooOld
from jobs_service.layer.key_parts import AFTER, unpack_id
from jobs_service.layer.keyspace import PERIODIC
from jobs_service.model import JobId
from jobs_service.runner import runner
from jobs_service.runner.schedule import MOST_MADE_UP, Every, Missed
from jobs_service.runner.ticker import Done, Periodic, Ticker, add_due, tick_id
from jobs_service.store.base import Limits, Transaction
from jobs_service.store.memory import Faults, MemoryTransaction
from jobs_service.testing import World
from jobs_service.testing.world import EPOCH, Process
from tests.checker import check_store
from tests.layer.support import layer
from tests.runner.support import opened, running, store_of
from tests.virtual_time import in_virtual_time

MINUTE = 60.0
START = EPOCH
"""1,700,000,000 is 20 s into a minute: the first tick of a whole minute comes 40 s later."""
FIRST = 40.0
SETTINGS = Settings(type_check_period=3600.0, activity_samples=4)
SPAN = 103.4
"""Seconds; no tick of many periods comes near the end of it."""
Register = Callable[[JobsService], object]


class RunRecord:
    """What the jobs of one world did.

    Attributes:
        ran: ids in the order in which they ran, with the world's time.
    """

    def __init__(self) -> None:
        self.ran: list[tuple[str, float]] = []

    @property
    def ids(self) -> list[str]:
        """The ids, in order."""
        return sorted(id for id, _ in self.ran)

    def note(self, job: Any) -> None:
        """Note that a job runs now."""
        self.ran.append((str(job.id), asyncio.get_running_loop().time()))


def every_minute(seen: RunRecord, **options: Any) -> Register:
    """Return what registers a handler that ticks every minute, and notes its runs."""

    def register(jobs: JobsService) -> object:
        @jobs.every("1m", type="minute", **options)
        async def minute(job: Any) -> None:
            seen.note(job)

        return minute

    return register


def serving(*registers: Register) -> Callable[[Process], Awaitable[None]]:
    """Return the program of a process that runs these handlers."""

    async def serve(process: Process) -> None:
        jobs = process.service()
        for register in registers:
            register(jobs)
        async with jobs:
            await jobs.run()

    return serve


def ticks(count: int, first: float = FIRST, period: float = MINUTE) -> list[str]:
    """Return the ids of so many ticks of a period, the first of them so many seconds after the start."""
    return [str(tick_id(START + first + number * period)) for number in range(count)]


def in_a_world(main: Callable[[World], Any], **how: Any) -> Any:
    """Run in a world of its own; nothing may fail or go unhandled, and the store must be sound."""
    world = World(1, settings=SETTINGS, **how)

    async def checked(world: World) -> Any:
        result = await main(world)
        failures = [process.failure for process in world._processes if process.failure]
        assert failures == [], list(world.events)[-20:]
        ahead = max((process.clock.ahead for process in world._processes), default=0.0)
        now = START + world.loop.time() + max(ahead, 0.0)
        async with Observer(world) as observer:
            assert await check_store(observer.store, now=now) == []
        return result

    result = world.run(checked)
    assert world.unhandled == []
    return result


class Observer:
    """A service of the test's own in a world, beside the processes."""

    def __init__(self, world: World) -> None:
        self._ready = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._process = world.start("observer", self._observe)

    async def _observe(self, process: Process) -> None:
        async with process.service(supervise=False) as jobs:
            self._ready.set_result(jobs)
            await self._over.wait()

    async def __aenter__(self) -> JobsService:
        jobs: JobsService = await self._ready
        return jobs

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await self._process.ended()


# One job per tick


def test_however_many_services_run_there_is_one_job_per_tick() -> None:
    seen = RunRecord()

    async def main(world: World) -> None:
        for number in range(5):
            world.start(f"p{number}", serving(every_minute(seen)))
        await asyncio.sleep(FIRST + 9 * MINUTE + 5)

    in_a_world(main)
    assert seen.ids == ticks(10)
    assert all(-0.001 <= at - (FIRST + place * MINUTE) <= 2 for place, (_, at) in enumerate(seen.ran)), seen.ran


def test_clocks_that_differ_bring_no_tick_twice() -> None:
    seen = RunRecord()

    async def main(world: World) -> None:
        for ahead in (-20.0, -1.0, 0.0, 3.0, 25.0):
            world.start(f"{ahead}", serving(every_minute(seen)), ahead=ahead)
        await asyncio.sleep(FIRST + 5 * MINUTE + 5)

    in_a_world(main)
    assert max(Counter(seen.ids).values()) == 1
    assert set(ticks(6)) <= set(seen.ids)
    assert set(seen.ids) <= set(ticks(8, FIRST - MINUTE))


def test_services_that_come_and_go_miss_no_tick_as_long_as_one_is_there() -> None:
    seen = RunRecord()

    async def main(world: World) -> None:
        program = serving(every_minute(seen))
        old = world.start("p", program)
        for number in range(6):
            await asyncio.sleep(37)
            new = world.start("p", program)
            await asyncio.sleep(23)
            if number % 2:
                old.kill()
            else:
                old.request_stop()
            old = new

    in_a_world(main)
    assert seen.ids == ticks(6)


@pytest.mark.unmeasured
def test_many_schedules_at_once_each_keep_their_own_pace() -> None:
    seen: dict[int, RunRecord] = {period: RunRecord() for period in range(5, 45, 3)}

    def register(jobs: JobsService) -> None:
        for period, those in seen.items():
            jobs.every(period, type=f"every {period}")(Noting(those))

    async def main(world: World) -> None:
        for number in range(2):
            world.start(f"p{number}", serving(register))
        await asyncio.sleep(SPAN)

    in_a_world(main)
    for period, those in seen.items():
        # A tick at the very moment of the first look counts.
        first = Every(period).next_after(START - 0.001) - START
        assert those.ids == ticks(int((SPAN - first) // period) + 1, first, period), period


class Noting:
    """A handler that notes its runs."""

    def __init__(self, seen: RunRecord) -> None:
        self._seen = seen

    async def __call__(self, job: Any) -> None:
        self._seen.note(job)


# Missed ticks


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        # 20 minutes are missed, the newest tick by 15 s.
        ("once", [*ticks(2), *ticks(2, FIRST + 21 * MINUTE)]),
        ("skip", [*ticks(2), *ticks(2, FIRST + 21 * MINUTE)]),
        ("all", ticks(23)),
    ],
)
def test_ticks_that_were_missed_are_made_up_for_as_the_policy_says(missed: str, expected: list[str]) -> None:
    seen = RunRecord()

    async def main(world: World) -> None:
        program = serving(every_minute(seen, missed=missed))
        first = world.start("p", program)
        await asyncio.sleep(FIRST + MINUTE + 15)
        first.request_stop()
        await first.ended()
        await asyncio.sleep(20 * MINUTE)
        for number in range(3):
            world.start(f"again {number}", program)
        await asyncio.sleep(MINUTE)

    in_a_world(main)
    assert seen.ids == expected


@pytest.mark.parametrize(("missed", "made_up"), [("once", 1), ("skip", 0), ("all", 3)])
def test_a_tick_that_is_long_over_is_skipped_where_it_is_to_be(missed: str, made_up: int) -> None:
    seen = RunRecord()

    def register(jobs: JobsService) -> None:
        jobs.every("10m", type="rare", missed=missed)(Noting(seen))

    async def main(world: World) -> None:
        first = world.start("p", serving(register))
        await asyncio.sleep(1)
        first.request_stop()
        await first.ended()
        await asyncio.sleep(1900)  # the last of three ticks is over for more than a minute
        world.start("again", serving(register))
        await asyncio.sleep(100)

    in_a_world(main)
    due = Every(600).previous_at(START + 1901)
    assert due is not None
    assert START + 1901 - due > 60
    assert len(seen.ids) == made_up
    assert made_up == 0 or seen.ids[-1] == tick_id(due)


def missed_seconds(missed: Missed, overlap: bool, seconds: float) -> Callable[[World], Awaitable[list[str]]]:
    """Return a world in which nobody was there for so many ticks; it returns the jobs that were made up."""

    async def main(world: World) -> list[str]:
        def register(jobs: JobsService) -> None:
            jobs.every(1, type="second", missed=missed, overlap=overlap, slots=0)(Noting(RunRecord()))

        first = world.start("p", serving(register))
        await asyncio.sleep(1.5)
        first.request_stop()
        await first.ended()
        async with Observer(world) as jobs:
            before = [str(job.id) async for job in jobs.list("second")]
            await asyncio.sleep(seconds)
            for id in before:
                await jobs.remove("second", id)
            world.start("p", serving(register))
            await asyncio.sleep(0.5)
            return [str(job.id) async for job in jobs.list("second")]

    return main


def test_of_many_missed_ticks_the_newest_hundred_are_made_up_for() -> None:
    ids = in_a_world(missed_seconds(Missed.ALL, True, 2500))
    assert len(ids) == MOST_MADE_UP
    newest = datetime.fromisoformat(ids[-1]).timestamp()
    assert ids == [tick_id(newest - back) for back in reversed(range(MOST_MADE_UP))]
    assert START + 2500 < newest < START + 2504


def test_fewer_missed_ticks_are_all_made_up_for() -> None:
    assert len(in_a_world(missed_seconds(Missed.ALL, True, 50))) in (50, 51)


def test_jobs_that_must_not_overlap_are_made_up_for_one_after_the_other() -> None:
    seen = RunRecord()

    async def main(world: World) -> None:
        def register(jobs: JobsService) -> None:
            @jobs.every(10, type="ten", missed=Missed.ALL)
            async def ten(job: Any) -> None:
                seen.ran.append((str(job.id), world.loop.time()))
                await asyncio.sleep(2)
                seen.ids.append(str(job.id))
                assert len(seen.ran) == len(seen.ids)

        first = world.start("p", serving(register))
        await asyncio.sleep(11)
        first.request_stop()
        await first.ended()
        await asyncio.sleep(60)
        world.start("p", serving(register))
        await asyncio.sleep(30)

    in_a_world(main)
    assert len(seen.ids) >= 9
    times = [datetime.fromisoformat(id).timestamp() for id in seen.ids]
    assert times == [times[0] + 10 * number for number in range(len(times))]


def test_a_schedule_that_is_seen_for_the_first_time_makes_up_for_nothing() -> None:
    seen = RunRecord()

    async def main(world: World) -> None:
        world.start("p", serving(every_minute(seen, missed=Missed.ALL)))
        await asyncio.sleep(FIRST - 1)
        assert seen.ran == []
        await asyncio.sleep(2)

    in_a_world(main)
    assert seen.ids == ticks(1)


# Clocks


def test_a_clock_that_is_set_back_brings_nothing_twice() -> None:
    seen = RunRecord()

    async def main(world: World) -> None:
        process = world.start("p", serving(every_minute(seen, missed=Missed.ALL)))
        await asyncio.sleep(FIRST + 3 * MINUTE + 1)
        process.clock.ahead -= 150
        await asyncio.sleep(5 * MINUTE)

    in_a_world(main)
    assert max(Counter(seen.ids).values()) == 1
    # Two and a half of the five minutes are lived through a second time.
    assert seen.ids == ticks(6)


def test_a_clock_that_is_set_forward_is_noticed_within_half_a_minute() -> None:
    seen = RunRecord()

    def register(jobs: JobsService) -> None:
        jobs.every("1d", type="daily")(Noting(seen))

    async def main(world: World) -> None:
        process = world.start("p", serving(register))
        await asyncio.sleep(5)
        process.clock.ahead += 86_400
        await asyncio.sleep(31)

    in_a_world(main)
    assert len(seen.ids) == 1


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.unmeasured
@pytest.mark.parametrize(
    ("expression", "day", "expected"),
    [
        ("30 2 * * *", "2024-10-27", ["2024-10-27T00:30:00Z"]),  # 2:30 comes twice: the first time only
        ("30 2 * * *", "2024-03-31", ["2024-03-31T01:00:00Z"]),  # there is no 2:30: as it is skipped
        ("0 3 * * *", "2024-10-27", ["2024-10-27T02:00:00Z"]),
        (
            "*/30 1-3 * * *",
            "2024-03-31",
            ["2024-03-31T00:00:00Z", "2024-03-31T00:30:00Z", "2024-03-31T01:00:00Z", "2024-03-31T01:30:00Z"],
        ),
    ],
)
def test_a_day_on_which_clocks_are_changed_has_its_ticks_once(expression: str, day: str, expected: list[str]) -> None:
    seen = RunRecord()
    midnight = datetime.fromisoformat(day).replace(tzinfo=BERLIN)

    def register(jobs: JobsService) -> None:
        jobs.cron(expression, timezone="Europe/Berlin", type="nightly", timeout=36_000)(Noting(seen))

    async def main(world: World) -> None:
        ahead = midnight.timestamp() - START
        for number in range(2):
            world.start(f"p{number}", serving(register), ahead=ahead)
        await asyncio.sleep(5 * 3600)

    in_a_world(main)
    assert seen.ids == expected


# Beside other things


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("missed", "made_up"), [("once", 1), ("all", 3), ("skip", 1)])
def test_ticks_of_a_paused_type_are_missed_until_it_is_resumed(missed: str, made_up: int, overlap: bool) -> None:
    seen = RunRecord()

    async def main(world: World) -> int:
        async with Observer(world) as jobs:
            await jobs.pause("minute")
            world.start("p", serving(every_minute(seen, missed=missed, overlap=overlap)))
            await asyncio.sleep(FIRST + 3 * MINUTE - 1)
            assert seen.ran == []
            waiting = await jobs.pending_count("minute")
            await jobs.resume("minute")
            await asyncio.sleep(0.4)
        return waiting

    assert in_a_world(main) == 0
    # Of a schedule that is not older than a minute, "skip" takes the newest tick for punctual.
    assert seen.ids == ticks(3)[-made_up:]


def test_a_paused_cron_that_makes_up_for_all_does_not_flood() -> None:
    async def main(world: World) -> int:
        def register(jobs: JobsService) -> None:
            jobs.every(1, type="second", missed="all", overlap=True, slots=0)(Noting(RunRecord()))

        async with Observer(world) as jobs:
            await jobs.pause("second")
            world.start("p", serving(register))
            await asyncio.sleep(1000)
            assert await jobs.pending_count("second") == 0
            await jobs.resume("second")
            await asyncio.sleep(0.5)
            return await jobs.pending_count("second")

    assert in_a_world(main) == MOST_MADE_UP


def slow_ticks(overlap: bool, missed: str = "once") -> list[tuple[str, float]]:
    """Return when the jobs of a handler began that takes longer than from one tick to the next."""
    started: list[tuple[str, float]] = []

    def register(jobs: JobsService) -> None:
        @jobs.every("1m", type="slow", overlap=overlap, missed=missed)
        async def slow(job: Any) -> None:
            started.append((str(job.id), asyncio.get_running_loop().time()))
            await asyncio.sleep(90)

    async def main(world: World) -> None:
        world.start("p", serving(register))
        await asyncio.sleep(FIRST + 3 * MINUTE + 5)

    in_a_world(main)
    return started


def test_jobs_that_may_overlap_come_whatever_runs() -> None:
    assert [id for id, _ in slow_ticks(overlap=True)] == ticks(4)


def test_a_tick_whose_predecessor_still_runs_waits_for_its_end() -> None:
    began = slow_ticks(overlap=False)
    # The tick after the first is due after 60 s, and waits until 90; of those at 120 and 180 the newer one comes then.
    assert [id for id, _ in began] == [ticks(4)[0], ticks(4)[1], ticks(4)[3]]
    assert [round(at - began[0][1]) for _, at in began] == [0, 90, 180]


def test_a_tick_whose_predecessor_still_runs_is_dropped_where_missed_ticks_are() -> None:
    began = slow_ticks(overlap=False, missed="skip")
    assert [id for id, _ in began][:2] == [ticks(4)[0], ticks(4)[1]]
    assert all(later - before >= 90 for (_, before), (_, later) in itertools.pairwise(began))


def test_a_job_that_waits_for_another_attempt_has_not_finished() -> None:
    failed: list[str] = []

    def register(jobs: JobsService) -> None:
        @jobs.every(10, type="flaky", backoff=35, jitter=0, max_attempts=2)
        async def flaky(job: Any) -> None:
            failed.append(str(job.id))
            raise ValueError("no")

    async def main(world: World) -> None:
        world.start("p", serving(register))
        await asyncio.sleep(60)

    in_a_world(main)
    assert failed[0] == failed[1]
    assert failed[2] > failed[1]


def test_whether_jobs_overlap_is_yes_or_no() -> None:
    with pytest.raises(InvalidSettings, match="overlap=1: allowed are True and False"):
        JobsService("memory:").every(10, overlap=1)  # type: ignore[arg-type]


def test_ticks_expire_as_their_handler_says() -> None:
    async def main(world: World) -> list[tuple[str, JobState]]:
        world.start("p", serving(every_minute(RunRecord(), keep=90)))
        await asyncio.sleep(FIRST + 10 * MINUTE + 5)
        async with Observer(world) as jobs:
            return [(str(job.id), job.state) async for job in jobs.list("minute")]

    left = in_a_world(main)
    assert 2 <= len(left) <= 4
    assert [id for id, _ in left] == ticks(11)[-len(left) :]
    assert {state for _, state in left} == {JobState.FINISHED}


# The transaction that adds them


@in_virtual_time
async def test_of_two_who_tick_at_once_one_adds_the_job() -> None:
    handlers = JobsService("memory:")

    @handlers.every("1m", type="t")
    async def minute() -> None:
        """Nothing."""

    periodic = Periodic(minute, Every(MINUTE), Missed.ALL, overlap=True)
    async with layer("t") as found:
        assert (await found.transact(lambda unit: add_due(unit, periodic, 100))).ids == []
        await asyncio.sleep(FIRST + MINUTE)
        both = await asyncio.gather(*(found.transact(lambda unit: add_due(unit, periodic, 100)) for _ in range(2)))
        assert sorted((done.ids for done in both), key=len) == [[], ticks(2)]
        await found.assert_sound()


def test_a_ticks_id_is_its_time_in_utc() -> None:
    assert tick_id(0.0) == "1970-01-01T00:00:00Z"
    assert tick_id(1_700_000_000.5) == "2023-11-14T22:13:20.500000Z"


# What is refused


@pytest.mark.parametrize(
    ("register", "error", "refused"),
    [
        (lambda jobs: jobs.every("soon"), InvalidJob, "period 'soon' is not allowed"),
        (lambda jobs: jobs.every(0.5), InvalidJob, "period 0.5 is not allowed"),
        (lambda jobs: jobs.every(timedelta(0)), InvalidJob, "is not allowed"),
        (
            lambda jobs: jobs.every(5, missed="never"),
            InvalidSettings,
            "missed='never': allowed are 'skip', 'once', 'all'",
        ),
        (lambda jobs: jobs.every(5, slots=-1), InvalidSettings, "option slots=-1: allowed is"),
        (lambda jobs: jobs.cron("every day"), InvalidJob, "cron expression 'every day'"),
        (lambda jobs: jobs.cron("0 0 31 2 *"), InvalidJob, "bad day-of-month"),
        (lambda jobs: jobs.cron("0 3 * * *", timezone="Berlin"), InvalidJob, "time zone 'Berlin': there is none"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_in_one_line(
    register: Register, error: type[Exception], refused: str
) -> None:
    with pytest.raises(error) as caught:
        register(JobsService("memory:"))
    assert refused in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_type_has_one_schedule() -> None:
    jobs = JobsService("memory:")
    jobs.every(5, type="t")(Noting(RunRecord()))
    with pytest.raises(InvalidSettings, match="type 't' has a handler already"):
        jobs.cron("0 3 * * *", type="t")(Noting(RunRecord()))
    assert [*jobs.handlers] == ["t"]


def test_a_periodic_job_without_a_type_has_its_functions_name() -> None:
    jobs = JobsService("memory:")

    @jobs.every("5m")
    async def clean_up() -> None:
        """Nothing."""

    assert clean_up.type == "clean_up"


def test_a_handler_that_needs_arguments_cannot_be_periodic() -> None:
    jobs = JobsService("memory:")

    async def needy(job: RunningJob, args: dict[str, Any]) -> None:
        """Take arguments that no tick has."""

    def needier(to: str, subject: str = "hi") -> None:
        """Take several."""

    def odd(args: object = ...) -> None:
        """Have a default that is no JSON."""

    for register in (jobs.every(10), jobs.cron("* * * * *")):
        with pytest.raises(
            InvalidSettings, match=r"needy cannot be a periodic handler: nobody gives it args; give thes"
        ):
            register(needy)
        with pytest.raises(InvalidSettings, match="nobody gives it to; "):
            register(needier)
        with pytest.raises(
            InvalidSettings, match="odd cannot be a periodic handler: its default is no argument: data is"
        ):
            register(odd)
    assert not jobs.handlers


@in_virtual_time
async def test_a_periodic_handler_is_called_with_its_defaults() -> None:
    async with opened() as jobs:
        given: list[Any] = []
        done = asyncio.Event()

        @jobs.every(10)
        async def greet(job: RunningJob, name: str = "ada", times: int = 2) -> None:
            given.append((name, times))

        @jobs.every(10)
        async def count(numbers: list[int] = [1, 2]) -> None:  # noqa: B006
            given.append(numbers)
            done.set()

        async with running(jobs):
            await done.wait()
            await asyncio.sleep(1)
        assert ("ada", 2) in given
        assert [1, 2] in given


@in_virtual_time
async def test_a_tick_whose_job_cannot_be_read_keeps_no_other_from_coming() -> None:
    async with opened() as jobs:
        ran: Counter[str] = Counter()
        ids: list[JobId] = []

        @jobs.every(10, type="damaged")
        async def damaged() -> None:
            ran["damaged"] += 1

        @jobs.every(10, type="sound")
        async def sound() -> None:
            ran["sound"] += 1

        async def damage(transaction: Transaction) -> None:
            data = jobs._context.keyspace.of("damaged").data
            found = await transaction.get_range(data, data + AFTER)
            transaction.set(found[-1][0], b"\xff")
            ids.append(unpack_id(found[-1][0][len(data) :]))

        async with running(jobs):
            await asyncio.sleep(15)
            await jobs.store.transact(damage)
            before = ran.copy()
            await asyncio.sleep(60)
        assert ran - before == {"damaged": 6, "sound": 6}
        await jobs.remove("damaged", ids[0], force=True)


class _Sizes(Faults):
    """Refuses transactions that write too many rows, and notes the bytes of the others."""

    def __init__(self, most: int) -> None:
        self.bytes: list[int] = []
        self._most = most

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        if len(transaction.log) > self._most:
            raise TransactionTooOld("transaction_too_old (1007): this one writes too much")
        self.bytes.append(transaction.size)


@pytest.mark.parametrize("most", [1_000_000, 60])
@pytest.mark.parametrize("before", [False, True])
@in_virtual_time
async def test_ticks_that_are_made_up_for_take_as_many_transactions_as_they_need(
    monkeypatch: pytest.MonkeyPatch, before: bool, most: int
) -> None:
    async with opened() as jobs:
        store = store_of(jobs)
        monkeypatch.setattr(store, "limits", Limits(value=2_000, transaction=8_000))

        @jobs.every(60, type="ticking", missed="all", overlap=True, slots=0, keep=None)
        async def tick(given: str = "x" * 200) -> None:
            """Nothing."""

        newest = Every(60).previous_at(jobs._context.sources.wall_time())
        assert newest is not None
        ids = [tick_id(newest - 60 * back) for back in reversed(range(MOST_MADE_UP))]
        if before:  # they have run, and run again: what they returned is rewritten
            await jobs.set_type_timeout("ticking", 60)
            for id in ids:
                await jobs.add("ticking", id)
                job = await jobs.accept("ticking", timeout=0)
                assert job is not None
                await job.finish(result="y" * 1_000)

        async def miss(transaction: Transaction) -> None:
            key = jobs._context.keyspace.sections[PERIODIC] + jobs._context.keyspace.of("ticking").packed
            transaction.set(key, fdb.tuple.pack((newest - 60.0 * MOST_MADE_UP,)))

        await store.transact(miss)
        sizes = store.faults = _Sizes(most)
        with capture_logs() as events:
            async with running(jobs):
                await asyncio.sleep(30)
        assert [job.id async for job in jobs.list("ticking", state="pending")] == ids
        assert max(sizes.bytes) <= 8_000 // 2
        assert [event for event in events if event["log_level"] != "debug"] == []


@in_virtual_time
async def test_a_tick_whose_job_is_too_large_keeps_no_other_from_coming() -> None:
    async with opened() as jobs:
        ran: Counter[str] = Counter()

        @jobs.every(10, type="large")
        async def large(given: str = "x" * 200_000) -> None:
            ran["large"] += 1

        @jobs.every(10, type="small")
        async def small() -> None:
            ran["small"] += 1

        with capture_logs() as events:
            async with running(jobs):
                await asyncio.sleep(35)
        assert ran == {"small": 4}
        refused = [event["type"] for event in events if event["event"] == "tick_refused"]
        assert len(refused) == 4
        assert {*refused} == {"large"}


@pytest.mark.parametrize("damage", [b"", b"\xff", b"no tuple", fdb.tuple.pack(("no time",))])
@in_virtual_time
async def test_a_last_tick_that_cannot_be_read_is_forgotten(damage: bytes) -> None:
    async with opened() as jobs:
        ran = 0

        @jobs.every(10, type="ticking")
        async def tick() -> None:
            nonlocal ran
            ran += 1

        async def harm(transaction: Transaction) -> None:
            keyspace = jobs._context.keyspace
            transaction.set(keyspace.sections[PERIODIC] + keyspace.of("ticking").packed, damage)

        await jobs.store.transact(harm)
        async with running(jobs):
            await asyncio.sleep(35)
        assert ran == 4  # at 0, 10, 20 and 30 s


@in_virtual_time
async def test_what_keeps_the_ticks_of_one_handler_from_coming_is_nothing_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Damaged(Ticker):
        """The ticks of one type are on a damaged page of the store."""

        async def _add_due(self, most: int) -> Done:
            async def add() -> Done:
                if self._periodic.handler.type == "damaged":
                    raise StoreDamaged("a page is damaged")
                return await super(Damaged, self)._add_due(most)

            return await self._context.retried(add)

    monkeypatch.setattr(runner, "Ticker", Damaged)
    async with opened() as jobs:
        ran: list[str] = []

        @jobs.every("1m", type="damaged")
        async def damaged() -> None: ...

        @jobs.every("1m", type="minute")
        async def minute(job: RunningJob) -> None:
            ran.append(str(job.id))

        async with running(jobs):
            await asyncio.sleep(FIRST + 4 * MINUTE + 5)
    assert ran == ticks(5)
