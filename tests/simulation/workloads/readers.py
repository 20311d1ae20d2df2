"""Those who ask for what nobody else does: counts, lists, types, rules. Every answer was so meanwhile."""

from __future__ import annotations

import contextlib
from typing import ClassVar, Final, TypeVar

from jobs_service import JobFailed, JobId, JobNotFound, JobState, JobType, NoTypeTimeout, Outcome, TypeCounts
from jobs_service.model.type_state import FOR_EVER
from jobs_service.testing import EPOCH
from tests.simulation.client import Client
from tests.simulation.job_states import meanwhile
from tests.simulation.rarities import pages_are_small
from tests.simulation.workloads.base import Workload

V = TypeVar("V")

_STATES: Final = (JobState.PENDING, JobState.RUNNING, JobState.FINISHED)


class Readers(Workload):
    """Count and list jobs, and ask for types and their rules."""

    name = "readers"
    weight: ClassVar[int] = 3

    async def step(self, client: Client) -> None:
        of_jobs = [self._count, self._active, self._list, self._list, self._totals, self._result]
        looks = [self._types, self._rules, self._ticks, self._page]
        await self.random.choice([*of_jobs, *looks])(client)

    async def _count(self, client: Client) -> None:
        type, limit = self.some_type(), self.random.choice([None, None, 1, 3])
        due_by = self.random.choice([None, None, client.process.clock.wall_time() + 5.0])
        began = client.version
        counted = await client.jobs.pending_count(type, due_by=due_by, limit=limit)
        possible = [self._number(type, version, JobState.PENDING) for version in self._versions(began, type)]
        most = max(possible) if limit is None else min(max(possible), limit)
        least = 0 if due_by is not None else min(possible) if limit is None else min(min(possible), limit)
        is_one_read = limit is due_by is None
        if pages_are_small() and not is_one_read and client.version != began:
            return  # each page is a transaction of its own, and jobs have moved meanwhile
        if not least <= counted <= most and not self.run.is_damaged:
            self.run.complain(f"count: {client.process} counted {counted} pending of {type!r}, not {least} to {most}")

    async def _active(self, client: Client) -> None:
        type, began = self.some_type(), client.version
        found = await client.jobs.active_ids(type)
        possible = [self._ids(type, version, JobState.RUNNING) for version in self._versions(began, type)]
        # Of several pages each is as it is at its time.
        in_pages = pages_are_small() and set.intersection(*possible) <= set(found) <= set.union(*possible)
        is_so = set(found) in possible or in_pages or self.run.is_damaged
        if len(set(found)) < len(found) or not is_so:
            self.run.complain(f"active: {client.process} was told that {found} of {type!r} run, not one of {possible}")

    async def _list(self, client: Client) -> None:
        """What is listed was so; what was so for the whole time is listed, once."""
        type, state = self.random.choice([None, self.some_type()]), self.random.choice([None, *_STATES])
        size = self.random.choice([1, 2, 1000])
        began = client.version
        seen = [
            (job.type, job.id)
            async for job in client.jobs.list(type, state=state, page_size=size)
            if job.state is not JobState.UNREADABLE
        ]
        if len(set(seen)) < len(seen):
            self.run.complain(f"list: {client.process} saw {seen}, some of them twice")
        keys = [key for key in self.run.history.known() if type is None or key[0] == type]
        for key in keys:
            was_so = list(meanwhile(self.run.history, key, began))
            was = [each is not None and (state is None or each.state is state) for each in was_so]
            there = [each is not None and each.state is not JobState.REMOVED for each in was_so]
            fits = [one and other for one, other in zip(was, there, strict=True)]
            if (key in seen and not any(fits)) or (key not in seen and all(fits)):
                self.run.complain(
                    f"list: {client.process}, for {type!r} in state {state}, "
                    f"{'saw' if key in seen else 'did not see'} {key}, which was {was_so} meanwhile"
                )
        if set(seen) - set(keys):
            self.run.complain(f"list: {client.process} saw {set(seen) - set(keys)}, which never were")

    async def _types(self, client: Client) -> None:
        began = client.version
        found = await client.jobs.types()
        for type, timeouts in self.run.history.timeouts.items():
            exists = self._values(began, timeouts, None)
            if (type in found and set(exists) == {None}) or (type not in found and None not in exists):
                self.run.complain(f"types: {client.process} was told of {found}; the timeout of {type!r} was {exists}")

    async def _rules(self, client: Client) -> None:
        type, history = self.random.choice([*self.run.history.timeouts]), self.run.history
        began = client.version
        self._compare(client, "paused", type, began, await client.jobs.paused(type), history.pauses.get(type), False)
        began = client.version
        timeout: float | None = None
        with contextlib.suppress(NoTypeTimeout):
            timeout = await client.jobs.get_type_timeout(type)
        self._compare(client, "timeout", type, began, timeout, history.timeouts.get(type), None)
        began = client.version
        retention = await client.jobs.get_retention(type)
        kept = history.retentions.get(type)
        self._compare(client, "retention", type, began, retention, kept, FOR_EVER)

    async def _ticks(self, client: Client) -> None:
        ticks = await client.jobs.last_ticks()
        latest = EPOCH + self.run.world.loop.time() + self.run.latest_clock
        for type, tick in ticks.items():
            if tick > latest:
                self.run.complain(f"ticks: {client.process} was told that {type!r} has ticked at {tick}")

    async def _totals(self, client: Client) -> None:
        """While nothing changes, what is told of a type as a whole fits what its jobs are."""
        type, began = self.some_type(), client.version
        queue = await client.jobs.queue_state(type)
        answers = [(await client.jobs.counts(type)).get(type), (await client.jobs.counts()).get(type)]
        oldest = await client.jobs.oldest_ready(type)
        if client.version != began or self.run.is_damaged:
            return
        pending = self._ids(type, began, JobState.PENDING)
        wanted = [len(pending), *(self._number(type, began, state) for state in _STATES[1:])]
        for each in (answer or TypeCounts() for answer in answers):
            told = [each.ready + each.scheduled, each.running, each.succeeded + each.failed + each.canceled]
            if told != wanted:
                self.run.complain(f"counts: {client.process} was told {each} of {type!r}, not {wanted}")
        if (queue.id is None and queue.next_scheduled is None) != (not pending) or queue.paused is not self._is_paused(
            type
        ):
            self.run.complain(f"queue: {client.process} was told {queue} of {type!r}, of which {pending} are pending")
        for id in (queue.id, None if oldest is None else oldest.id):
            if id is not None and id not in pending:
                self.run.complain(f"queue: {client.process} was told that {id!r} of {type!r} is ready")

    async def _page(self, client: Client) -> None:
        """While nothing changes, pages have each job once."""
        type, began = self.some_type(), client.version
        state, limit = self.random.choice([None, *_STATES]), self.random.choice([1, 2, 100])
        prefix, newest_first = self.random.choice([None, "j"]), self.random.choice([False, True])
        seen: list[JobId] = []
        after: str | None = None
        while True:
            page = await client.jobs.page(
                type, state=state, limit=limit, after=after, newest_first=newest_first, prefix=prefix
            )
            seen += [job.id for job in page.jobs if job.state is not JobState.UNREADABLE]
            after = page.next
            if after is None or client.version != began:
                break
        if client.version != began or self.run.is_damaged:
            return
        states = _STATES if state is None else (state,)
        wanted = set().union(*(self._ids(type, began, each) for each in states))
        if prefix is not None:
            wanted = {id for id in wanted if isinstance(id, str) and id.startswith(prefix)}
        if len(set(seen)) < len(seen) or set(seen) != wanted:
            self.run.complain(f"page: {client.process} saw {seen} of {type!r} in {state}, not {wanted}")

    async def _result(self, client: Client) -> None:
        type, id = self.some_type(), self.some_id()
        began = client.version
        outcome: Outcome | None = Outcome.SUCCEEDED
        try:
            await client.jobs.result(type, id, timeout=self.random.choice([0.0, 1.0, 5.0]))
        except JobFailed:
            outcome = None
        except (JobNotFound, TimeoutError):
            return
        was_so = [each for each in meanwhile(self.run.history, (type, id), began) if each is not None]
        finished = [each.outcome for each in was_so if each.state is JobState.FINISHED]
        if not any((each is Outcome.SUCCEEDED) == (outcome is Outcome.SUCCEEDED) for each in finished):
            self.run.complain(f"result: {client.process} was told {outcome} of {type!r}/{id!r}, which was {was_so}")

    # What was so

    def _is_paused(self, type: JobType) -> bool:
        past = self.run.history.pauses.get(type, [])
        return bool(past) and past[-1][1]

    def _compare(
        self,
        client: Client,
        what: str,
        type: JobType,
        began: int,
        found: V,
        changes: list[tuple[int, V]] | None,
        usual: V,
    ) -> None:
        possible = self._values(began, changes or [], usual)
        if found not in possible:
            self.run.complain(f"{what}: {client.process} was told {found} of {type!r}, not one of {possible}")

    def _values(self, began: int, changes: list[tuple[int, V]], usual: V) -> list[V]:
        """Return what was so from a version on, of changes by version; `usual` before the first."""
        before = [value for version, value in changes if version <= began]
        return [before[-1] if before else usual, *(value for version, value in changes if version > began)]

    def _versions(self, began: int, type: JobType) -> list[int]:
        """Return the versions since then at which jobs of a type have changed, and the first one."""
        keys = [key for key in self.run.history.known() if key[0] == type]
        changed = {state.version for key in keys for state in self.run.history.states(*key) if state.version > began}
        return [began, *sorted(changed)]

    def _number(self, type: JobType, version: int, state: JobState) -> int:
        return len(self._ids(type, version, state))

    def _ids(self, type: JobType, version: int, state: JobState) -> set[JobId]:
        keys = [key for key in self.run.history.known() if key[0] == type]
        last = {
            key[1]: [each for each in self.run.history.states(*key) if each.version <= version][-1:] for key in keys
        }
        return {id for id, states in last.items() if states and states[0].state is state}
