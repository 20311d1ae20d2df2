"""One copy, from its beginning or from its last note to its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

from jobs_service.copying.comparing import Comparison, compare, has_settings
from jobs_service.copying.note import Note, Phase
from jobs_service.copying.results import Copied, CopyRefused, Counts, Progress, Step
from jobs_service.copying.source import SECTIONS, Overview, Source, changed, counted
from jobs_service.copying.target import Target, not_empty
from jobs_service.errors import RecordDamaged
from jobs_service.layer.batch_bounds import Batch, Pace
from jobs_service.layer.keyspace import DATA
from jobs_service.model.type_state import FOR_EVER, Retention
from jobs_service.sources import Sources
from jobs_service.store.background_priority import background
from jobs_service.store.base import Store

DEFAULT_BATCH: Final = Batch()
_REPORT_EVERY: Final = 200


async def copy_jobs(
    source: Store,
    target: Store,
    *,
    sources: Sources,
    make: Callable[[], Awaitable[Store]] | None = None,
    force: bool = False,
    start_over: bool = False,
    batch: Batch | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Copy all types and jobs of one store into another, or continue an unfinished copy.

    Args:
        source: an open store; never written to.
        target: an open store without jobs, or with an unfinished copy of the same source (compared by address).
        sources: wall-clock time.
        make: creates and opens the target once the source has been checked; until then `target` is an empty store with
            the same address and limits. None if the target exists.
        force: copy although jobs run, or other programs use one of the stores. Running jobs are copied as pending,
            ahead of all others of their priority; jobs that the target already has stay unchanged.
        start_over: first remove the jobs of an unfinished copy from the target.
        batch: bounds of one transaction; None for bounds that suit every store.
        progress: called now and then; see `Progress`.

    Raises:
        CopyRefused: one of the stores is in the wrong state; copied jobs stay, and the next call continues.
        JobTooLarge: a job's record or keys exceed the target's limits; nothing was written.
        RecordDamaged: the source has damaged records (with force they are left out); nothing was written.
        StoreError: one of the stores failed; call it again to continue.
    """
    if source is target:
        raise _same(target.address)
    batch = batch or DEFAULT_BATCH
    # A copy reads and writes whole stores: on a busy cluster other transactions come first.
    with background():

        async def target_in(store: Store) -> Target:
            return Target(store, await store.prefix(), sources, batch, force)

        looked_at = await target_in(target)

        async def made() -> Target:
            return looked_at if make is None else await target_in(await make())

        copy = _Copy(
            Source(source, await source.prefix(), batch),
            looked_at,
            made,
            force,
            progress or (lambda step, done, total: None),
        )
        return await copy.run(start_over)


class _Copy:
    """One copy.

    Args:
        source, target: the stores.
        make: returns the target to write to.
        force, progress: as for `copy_jobs`.
    """

    def __init__(
        self,
        source: Source,
        target: Target,
        make: Callable[[], Awaitable[Target]],
        force: bool,
        progress: Progress,
    ) -> None:
        self._source = source
        self._target = target
        self._make = make
        self._force = force
        self._progress = progress
        self._overview = Overview()
        self._unreadable = 0
        self._counts: dict[bytes, Counts] = {}

    async def run(self, start_over: bool) -> Copied:
        """Run the whole copy; see `copy_jobs`."""
        note = await self._unfinished(start_over)
        resumed = note is not None
        await self._survey()
        self._target = await self._make()
        if note is None:
            if not self._force and not await self._target.is_empty():
                return await self._complete_before()
            note = await self._begin()
        elif self._force and not note.forced:
            note = await self._target.force(note)
        found = Comparison(0, "")
        if note.phase is not Phase.SETTINGS:
            note = await self._copy(note)
            found = await self._compare(note)
        await self._require_unchanged(note)
        await self._target.open_types(note, self._overview.settings)
        return Copied(
            self._types(),
            resumed=resumed,
            skipped=note.skipped,
            differing=found.differing,
            unreadable=self._unreadable,
            strays=found.strays,
        )

    async def _unfinished(self, start_over: bool) -> Note | None:
        """Return the note of the copy to continue, None for a new one; read the overview of the source."""
        if not await self._source.is_complete():
            raise CopyRefused(
                f"{self._source.name} is the target of a copy that is not finished: finish that, or name its source"
            )
        note = await self._target.note()
        if note is not None and (start_over or note.phase is Phase.REMOVING):
            await self._target.undo(note, lambda done: self._progress(Step.REMOVING, done, None))
            note = None
        self._overview = await self._source.overview()
        if note is not None and note.source != self._source.name:
            raise CopyRefused(
                f"{self._target.name} has an unfinished copy of another store, {note.source}: finish that, or "
                "remove what it has written with --start-over"
            )
        if note is not None:
            await self._require_unchanged(note, self._overview)
        return note

    async def _survey(self) -> None:
        """Read all jobs once before anything is written: count them, and refuse jobs that cannot be copied."""
        if not self._force and (running := await self._source.running_job()) is not None:
            raise CopyRefused(
                f"{self._source.name} is being worked on: job {running} runs. End the workers and wait until it is "
                "given back, or copy it as a pending job with --force"
            )
        for type in self._overview.settings:
            self._target.require_room_for_type(type)
            self._counts[type] = Counts(self._source.keyspace.of_packed(type).type)
        rows = self._source.stream(DATA)
        done = 0
        first: RecordDamaged | None = None
        while (row := await rows.next()) is not None:
            try:
                job = self._source.job_at(*row)
            except RecordDamaged as error:
                first = first or error
                self._unreadable += 1
                continue
            self._target.require_room(job)
            counted(self._counts, self._source.keyspace, job)
            done += 1
            self._report(Step.LOOKING, None, done)
        if first is not None and not self._force:
            raise RecordDamaged(
                f"{first}; {self._unreadable} such in all: remove them with force, or leave them out with --force",
                type=first.type,
                id=first.id,
            )

    async def _begin(self) -> Note:
        """Write the note of a new copy."""
        note = Note(self._source.name, self._overview.fingerprint, forced=self._force)
        await self._target.begin(note)
        if not await self._source.is_complete():
            await self._target.forget(note)
            raise _same(self._target.name)
        return note

    async def _copy(self, note: Note) -> Note:
        """Copy the rest of the jobs, phase by phase."""
        phases = list(SECTIONS)
        for phase in phases[phases.index(note.phase) :]:
            after = bytes.fromhex(note.after) if phase is note.phase else b""
            note = await self._copy_phase(note, phase, after)
        return note

    async def _copy_phase(self, note: Note, phase: Phase, after: bytes) -> Note:
        pace = Pace(self._target.batch)
        position: bytes | None = after
        while position is not None:
            note, position = await pace.fitting(partial(self._copy_page, note, phase, position))
            self._progress(Step.COPYING, note.jobs, self._total())
        return note

    async def _copy_page(self, note: Note, phase: Phase, after: bytes, size: int) -> tuple[Note, bytes | None]:
        page = await self._source.page(phase, after, size, None if self._force else self._overview)
        if page.jobs:
            following = replace(note, phase=phase, after=page.last.hex())
            note = await self._target.write(note, following, page.jobs, self._keep)
        return note, page.last if page.more else None

    async def _compare(self, note: Note) -> Comparison:
        """Compare both stores; refuse differences unless the copy was forced."""
        total = self._total()
        found = await compare(
            self._source, self._target, whole=not note.forced, progress=partial(self._report, Step.COMPARING, total)
        )
        self._progress(Step.COMPARING, total, total)
        if found.differing and not note.forced:
            await self._require_unchanged(note)
            raise CopyRefused(
                f"{self._target.name} differs from {self._source.name}: {found.first}; was it changed meanwhile? "
                "Copy again with --start-over"
            )
        return found

    async def _complete_before(self) -> Copied:
        """Return the result for a target that has all jobs already; refuse one with other jobs."""
        there = Source(self._target.store, self._target.keyspace.prefix, self._target.batch)
        total = self._total()
        report = partial(self._report, Step.COMPARING, total)
        if has_settings(await there.overview(), self._overview):
            found = await compare(self._source, self._target, whole=True, progress=report)
            if not found.differing:
                return Copied(self._types(), complete_before=True)
        raise not_empty(self._target.name)

    async def _require_unchanged(self, note: Note, overview: Overview | None = None) -> None:
        """Refuse a source that has changed since the copy began."""
        overview = overview or await self._source.overview()
        if overview.fingerprint != note.fingerprint and not self._force:
            raise changed(self._source.name)

    def _keep(self, type: bytes) -> Retention:
        settings = self._overview.settings.get(type)
        return FOR_EVER if settings is None else settings.keep()

    def _types(self) -> tuple[Counts, ...]:
        return tuple(self._counts[type] for type in sorted(self._counts))

    def _total(self) -> int:
        return sum(counts.jobs for counts in self._counts.values())

    def _report(self, step: Step, total: int | None, done: int) -> None:
        if done % _REPORT_EVERY == 0:
            self._progress(step, done, total)


def _same(name: str) -> CopyRefused:
    return CopyRefused(f"{name} would be copied to itself; name another store")
