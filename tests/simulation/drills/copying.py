"""A copy of one store into another: what it says, what is there afterwards, and what it refuses, wherever it stops."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import fdb.tuple

from jobs_service import JobId, JobsService, JobType, Outcome
from jobs_service.copying import Batch, Copied, CopyRefused, Step, copy_jobs
from jobs_service.errors import JobsError, RecordDamaged
from tests.simulation.damage import DAMAGED, is_damage
from tests.simulation.drills.drill import LONG, Drill
from tests.simulation.drills.place import Place
from tests.simulation.portraits import Portrait, differences, portrait

_TYPES: Final[tuple[JobType, ...]] = ("a", ("b", 1), "c")
_LATER: Final = 500.0
_KEPT: Final = (None, 100.0, 200.0)
_STOPPED: Final = 0.3
_OF_COPYING: Final = b"\x15\x0d"
_STAMP: Final = 10
_ORDER: Final = (Step.REMOVING, Step.LOOKING, Step.COPYING, Step.COMPARING)


class _Stopped(Exception):
    """Ends a copy on its way."""


class _Source:
    """What is in the source.

    Attributes:
        counts: of jobs that can be read, by type and state.
        damaged: how many jobs cannot be read.
        stray: an entry of a queue that belongs to no job; empty if there is none.
    """

    def __init__(self) -> None:
        self.counts: dict[JobType, Counter[str]] = {}
        self.damaged = 0
        self.stray = b""

    @property
    def running(self) -> int:
        """How many jobs run."""
        return sum(counts["running"] for counts in self.counts.values())

    @property
    def jobs(self) -> int:
        """How many jobs there are that can be read."""
        return sum(counts.total() for counts in self.counts.values())


async def copy_a_store(drill: Drill) -> None:
    """Fill a store with whatever there can be, and copy it: in parts, with force, anew, and once more."""
    random = drill.random
    ours, theirs = Place(drill, "source"), Place(drill, "target")
    async with ours.jobs, theirs.jobs:
        source = await _filled(drill, ours)
        kept = await ours.rows()
        force = random.random() < 0.5
        wanted: type[Exception] | None = None
        if not force:
            wanted = CopyRefused if source.running else RecordDamaged if source.damaged else None
        if wanted is not None:
            await _refused(drill, ours, theirs, wanted)
            force = True
        if not await _in_parts(drill, ours, theirs, force, source):
            return
        if await ours.rows() != kept:
            drill.complain("a store was copied, and has changed by that")
        if source.jobs:
            await _once_more(drill, ours, theirs, source)


async def _filled(drill: Drill, place: Place) -> _Source:
    """Have a store have types and jobs of all kinds; return what they are."""
    random, jobs, source = drill.random, place.jobs, _Source()
    none_runs = random.random() < 0.5
    for type in random.sample(_TYPES, random.randint(1, 3)):
        source.counts[type] = counts = Counter[str]()
        await jobs.set_type_timeout(type, random.choice([60.0, LONG]))
        if random.random() < 0.5:
            await jobs.set_retention(type, keep=random.choice(_KEPT), keep_failed=random.choice(_KEPT))
        if random.random() < 0.3:
            await jobs.set_redaction(type, ["a.b"])
        many = random.randint(0, 9)
        for number in range(many):
            options: dict[str, Any] = {"priority": random.choice([0, 0, 1, "p"])} if random.random() < 0.5 else {}
            if random.random() < 0.2:
                options["run_at"] = place.sources.wall_time() + _LATER
            counts["scheduled" if "run_at" in options else "ready"] += 1
            await jobs.add(type, str(number), {"number": number}, **options)
        for _ in range(random.randint(0, 4) if random.random() < 0.8 else 0):
            await _take(drill, jobs, type, counts, none_runs=none_runs)
        if random.random() < 0.3:
            await jobs.pause(type)
        if random.random() < 0.3:
            await place.put(fdb.tuple.pack((14, type)), fdb.tuple.pack((60.0, None, 100.0)))
    if random.random() < 0.25:
        source.damaged = random.randint(1, 2)
        for number in range(source.damaged):
            key = fdb.tuple.pack((1, next(iter(source.counts)), f"{DAMAGED}{number}"))
            await place.put(key, b"\xffnothing")
    if random.random() < 0.4 and (ready := [key for key in await place.rows() if key.startswith(b"\x15\x02")]):
        key = random.choice(ready)
        at = key.index(b"\x33", 2) if b"\x33" in key[2:] else len(key)
        if len(key) > at + _STAMP:  # another place in the queue than the job's own
            source.stray = key[: at + _STAMP] + bytes([key[at + _STAMP] ^ 0x55]) + key[at + _STAMP + 1 :]
            await place.put(source.stray, b"")
    return source


async def _take(drill: Drill, jobs: JobsService, type: JobType, counts: Counter[str], *, none_runs: bool) -> None:
    """Have a job run, and mostly end."""
    random, job = drill.random, await jobs.accept(type, timeout=0)
    if job is None:
        return
    counts["ready"] -= 1
    how = random.choice(["finish", "finish", "fail", *(["run", "run"] * (not none_runs))])
    if random.random() < 0.2:
        await jobs.remove(type, job.id)
    if how in ("finish", "fail"):
        await job.finish(outcome=Outcome.FAILED if how == "fail" else Outcome.SUCCEEDED, result={"of": job.id})
        counts["finished"] += 1
    else:
        counts["running"] += 1


async def _copied(
    drill: Drill,
    ours: Place,
    theirs: Place,
    *,
    force: bool,
    start_over: bool = False,
    stops: bool = False,
    is_used: bool = False,
) -> Copied:
    """Copy once; what it reports of its progress goes on, and comes to the end.

    Raises:
        _Stopped: it was stopped on its way.
        JobsError: it was refused.
    """
    random = drill.random
    told: list[tuple[int, int]] = []
    ends: dict[Step, tuple[int, int | None]] = {}

    def progress(step: Step, done: int, total: int | None) -> None:
        told.append((_ORDER.index(step), done))
        ends[step] = done, total
        if stops and random.random() < _STOPPED:
            raise _Stopped

    batch = Batch(jobs=random.choice([1, 2, 3, 250]), bytes=random.choice([100_000, 1, 500]))
    copied = await copy_jobs(
        ours.store, theirs.store, sources=theirs.sources, force=force, start_over=start_over, batch=batch,
        progress=progress,
    )  # fmt: skip
    if told != sorted(told):
        drill.complain(f"a copy has told of its progress: {told}")
    for step in (Step.COPYING, Step.COMPARING):
        if not is_used and step in ends and ends[step] != (copied.jobs, copied.jobs):
            drill.complain(f"a copy of {copied.jobs} jobs has come to its end with {step} at {ends[step]}")
    return copied


async def _refused(
    drill: Drill,
    ours: Place,
    theirs: Place,
    wanted: type[Exception],
    *,
    force: bool = False,
    writes: bool = False,
) -> None:
    """What cannot be copied is refused, and nothing is written, unless it is seen on the way only."""
    before = await theirs.rows()
    try:
        copied = await _copied(drill, ours, theirs, force=force)
        drill.complain(f"a copy was to be refused as {wanted.__name__}, and has come to {copied}")
    except wanted:
        pass
    if not writes and await theirs.rows() != before:
        drill.complain("a copy was refused, and has written something")


async def _in_parts(drill: Drill, ours: Place, theirs: Place, force: bool, source: _Source) -> bool:
    """Copy until it is done, look at what is there in between and at the end; return whether nobody used the stores."""
    random, stops, start_over = drill.random, drill.random.choice([0, 1, 3, 3]), False
    theirs_before, was_started, is_used = portrait(await theirs.rows()), False, False
    while True:
        try:
            copied = await _copied(
                drill, ours, theirs, force=force, start_over=start_over, stops=stops > 0, is_used=is_used
            )
            break
        except _Stopped:
            stops -= 1
        except CopyRefused as refused:
            if not is_used:
                drill.complain(f"a copy was refused, and nobody has used either store: {refused}")
                return False
            force = True
            continue
        rows = await theirs.rows()
        note = rows.get(_OF_COPYING)
        was_started = note is not None and b'"removing"' not in note
        start_over = was_started and not is_used and random.random() < 0.2
        if not is_used:
            await _is_shut(drill, theirs, rows)
        if was_started and not is_used and random.random() < 0.4:
            if random.random() < 0.5:
                await _refuse_others(drill, ours, theirs)
                continue
            is_used, start_over, type = True, False, random.choice([*source.counts])
            place = random.choice([ours, theirs])
            await place.jobs.set_type_timeout(type, LONG)
            await place.jobs.add(type, "of others")
            if not force:
                await _refused(drill, ours, theirs, CopyRefused, writes=True)
    rows = await theirs.rows()
    if any(key.startswith(_OF_COPYING) for key in rows):
        drill.complain("a copy has ended, and its notes are there")
    if not is_used:
        for what in differences(_readable(await ours.rows(), source.stray), theirs_before, _readable(rows)):
            drill.complain(f"of a copy: {what}")
        _compare(drill, copied, source, force, resumed=was_started and not start_over)
        return True
    left = _readable(await ours.rows(), source.stray).jobs.keys() - _readable(rows).jobs.keys()
    if copied.differing != len(left) or copied.resumed != (was_started and not start_over):
        drill.complain(f"the stores of a copy were used; {left} were left out, and it says {copied}")
    return False


async def _refuse_others(drill: Drill, ours: Place, theirs: Place) -> None:
    """As long as a copy is not complete, its target is no source, and takes no copy of another store."""
    other, force = Place(drill, "other"), drill.random.random() < 0.5
    async with other.jobs:
        await other.jobs.set_type_timeout("a", LONG)
        await _refused(drill, other, theirs, CopyRefused, force=force)
        await _refused(drill, theirs, other, CopyRefused, force=force)
    await _refused(drill, ours, ours, CopyRefused, force=force)


async def _is_shut(drill: Drill, theirs: Place, rows: dict[bytes, bytes]) -> None:
    """As long as a copy is not complete, nobody takes its jobs, or adds some beside them."""
    for type in {key[0] for key in _readable(rows).jobs}:
        paused, taken = await theirs.jobs.paused(type), await theirs.jobs.accept(type, timeout=0)
        if not paused or taken is not None:
            drill.complain(f"half of {type!r} is copied; it is {'' if paused else 'not '}paused, and {taken} was taken")


def _readable(rows: dict[bytes, bytes], stray: bytes = b"") -> Portrait:
    return portrait({key: value for key, value in rows.items() if not is_damage(key, value) and key != stray})


def _compare(drill: Drill, copied: Copied, source: _Source, force: bool, *, resumed: bool) -> None:
    """Compare what a copy says with what there was."""
    found = {
        each.type: {
            "ready": each.ready,
            "scheduled": each.scheduled,
            "running": each.running,
            "finished": each.finished,
        }
        for each in copied.types
    }
    wanted = {
        type: {name: counts[name] for name in ("ready", "scheduled", "running", "finished")}
        for type, counts in source.counts.items()
    }
    said: tuple[Any, ...] = copied.resumed, copied.complete_before, copied.skipped, copied.differing
    said += copied.unreadable, copied.strays, copied.jobs, copied.running
    true = resumed, False, 0, 0, source.damaged, 0 if force else int(bool(source.stray)), source.jobs, source.running
    if (found, said) != (wanted, true):
        drill.complain(f"a copy (force={force}) says {found}, {said}; it is {wanted}, {true}")


async def _once_more(drill: Drill, ours: Place, theirs: Place, source: _Source) -> None:
    """Copy again what is there: nothing is written, or it is refused, as it was before or as something has changed."""
    random, before = drill.random, await theirs.rows()
    force, other = random.random() < 0.4, random.choice(["nothing", "setting", "setting", "job", "more"])
    if other == "setting":
        await ours.jobs.set_type_timeout(random.choice([*source.counts]), 17.0)
    elif other in ("job", "more"):
        place = ours if other == "job" else theirs
        type, id = random.choice([*source.counts]), _id_of(other)
        await place.jobs.add(type, id)
        before = await theirs.rows()
    refuses = not force and (other != "nothing" or source.running or source.damaged)
    try:
        copied = await _copied(drill, ours, theirs, force=force)
    except (CopyRefused, RecordDamaged) as error:
        if not refuses:
            drill.complain(f"a copy was to be done once more ({other}), and was refused: {error!r}")
        if await theirs.rows() != before:
            drill.complain(f"a copy was refused ({other}), and has written something")
        return
    except JobsError as error:
        drill.complain(f"a copy has failed: {error!r}")
        return
    if refuses:
        drill.complain(f"a copy was done once more, and is {copied}; {other} is another")
    said = copied.complete_before, copied.resumed, copied.skipped
    wanted = not force, False, source.jobs if force else 0
    if said != wanted:
        drill.complain(f"a copy was done once more (force={force}, {other}), and says {said}, not {wanted}")
    if not force and await theirs.rows() != before:
        drill.complain("a copy was complete before, and has written something")


def _id_of(what: str) -> JobId:
    return f"one {what}"
