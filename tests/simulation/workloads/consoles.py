"""Those at a console, who use verbs of the command line. What these print must have been so."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from jobs_service import Job, JobId, JobState, JobType, Removal
from jobs_service.cli.exits import AnswerIsNo
from jobs_service.model.type_state import Retention
from jobs_service.names import priority_text, shown
from jobs_service.redaction import REDACTED
from tests.simulation.calls import Call
from tests.simulation.client import Client
from tests.simulation.command_line import Answer, command_line
from tests.simulation.drills.verbs import row_of
from tests.simulation.job_states import State, meanwhile
from tests.simulation.workloads.base import Workload

_STATES: Final = (JobState.PENDING, JobState.RUNNING, JobState.FINISHED)


class Consoles(Workload):
    """Use verbs that answer once and end; not those that never end, open another store, or run programs."""

    name = "consoles"
    weight: ClassVar[int] = 4

    async def step(self, client: Client) -> None:
        verbs = [self._add, self._add, self._resubmit, self._remove, self._types_set]
        verbs += [self._show, self._show, self._list, self._list, self._figures, self._figures, self._retention]
        with contextlib.suppress(AnswerIsNo):
            await self.random.choice(verbs)(client)

    # Verbs that change something: their calls are checked as those of anybody else

    async def _add(self, client: Client) -> None:
        type, id, options = self.some_type(), self.some_id(), self._options(client)
        call = client.begin("add", type, id, options)
        data = json.dumps(client.data(call))
        again = ["--resubmit"] * self.random.choice([0, 1])
        await self._changing(client, call, ["add", *_names(type, id), "--data", data, *again, *_flags(options)], _job)

    async def _resubmit(self, client: Client) -> None:
        type, id, options = self.some_type(), self.some_id(), self._options(client)
        call = client.begin("resubmit", type, id, options)
        data = json.dumps(client.data(call))
        await self._changing(client, call, ["resubmit", *_names(type, id), "--data", data, *_flags(options)], _job)

    async def _remove(self, client: Client) -> None:
        type, id = self.some_type(), self.some_id()
        force = ["--force"] * (self.random.random() < 0.3)
        call = client.begin("remove", type, id)
        await self._changing(client, call, ["remove", *_names(type, id), *force], _removal)

    async def _changing(
        self, client: Client, call: Call, arguments: Sequence[str], parse: Callable[[Answer], object]
    ) -> None:
        """Use a verb that changes a job, and note what it has told as the answer of a call."""

        began = self.run.world.loop.time()

        async def answer() -> object:
            said = await self._use(client, *arguments)
            may_hide = self.run.quiet.quick_since() > began or self.run.is_over
            may_hide |= self.run.crashes.has_crashed(client.process)
            if isinstance(said.value, Job) and said.value.data == REDACTED and not may_hide:
                self.run.complain(f"console: {arguments} in {client.process} hid everything, and nothing takes time")
            return parse(said)

        result = await client.call(call, answer())
        if result is None:
            self.run.complain(f"console: {arguments} in {client.process} printed another job or state than it has made")

    async def _types_set(self, client: Client) -> None:
        """Give a type the timeout that it has."""
        type = self.some_type()
        seconds = self.run.history.model.timeouts.get(type)
        if seconds is not None:
            await self._use(client, "types", "set", *_names(type), f"{seconds:g}")

    # Verbs that look

    async def _show(self, client: Client) -> None:
        type, id, began = self.some_type(), self.some_id(), client.version
        said = await self._use(client, "show", *_names(type, id))
        was_so = [each for each in meanwhile(self.run.history, (type, id), began) if each is not None]
        if not any(_is_told(said.out, type, id, state) for state in was_so):
            self.run.complain(f"show: {client.process} printed {said.out!r}, and the job was {was_so} meanwhile")

    async def _list(self, client: Client) -> None:
        """What is listed was so; what was so for the whole time is listed, once."""
        type, state = self.random.choice([None, self.some_type()]), self.random.choice([None, *_STATES])
        began = client.version
        chosen = [] if state is None else ["--state", state.value]
        arguments = [*([] if type is None else [shown(type)]), *chosen]
        said = await self._use(client, "list", *arguments)
        rows = [row for row in _rows(said) if row["state"] != JobState.UNREADABLE.value]
        seen = [(row["type"], row["id"]) for row in rows]
        names = {(shown(key[0]), shown(key[1])): key for key in self.run.history.known()}
        if len(set(seen)) < len(seen) or set(seen) - names.keys():
            self.run.complain(f"list: {client.process} printed {seen}: some twice, or some that never were")
        for name, key in names.items():
            if type is None or key[0] == type:
                was = [_fits(each, state) for each in meanwhile(self.run.history, key, began)]
                if not any(was) if name in seen else all(was):
                    printed = "printed" if name in seen else "did not print"
                    self.run.complain(f"list: {client.process}, for {arguments}, {printed} {name}")

    async def _figures(self, client: Client) -> None:
        """While nothing changes, what is there is in the figures. `processes` has to answer only."""
        began, verb = client.version, self.random.choice(["stats", "types", "workers", "failures", "processes"])
        rows = _rows(await self._use(client, verb))
        if client.version != began or self.run.is_damaged or self.run.is_aged:
            return
        found = self._found(began)
        told: dict[Any, int]
        wanted: dict[Any, int]
        if verb in ("stats", "types"):
            told = {row["type"]: sum(_counts(row).values()) for row in rows}
            wanted = {shown(type): len(self._of(found, type)) for type, _ in found}
        elif verb == "workers":
            told = {(row["type"], row["id"]): 1 for row in rows}
            wanted = {(shown(type), shown(id)): 1 for (type, id), state in found.items() if state.lock is not None}
        elif verb == "failures":
            told = {"failed": sum(row["count"] for row in rows)}
            failed = [state for state in found.values() if state.outcome is not None and state.outcome == "failed"]
            wanted = {"failed": len(failed)}
        else:
            return
        if any(told.get(name, 0) != number for name, number in wanted.items()):
            self.run.complain(f"{verb}: {client.process} printed {told}, not {wanted}")

    async def _retention(self, client: Client) -> None:
        type = self.some_type()
        began = client.version
        said = await self._use(client, "retention", *_names(type))
        changes = self.run.history.retentions.get(type, [])
        before = [rule for version, rule in changes if version <= began][-1:] or [Retention(None, None)]
        possible = [asdict(rule) for rule in (*before, *(rule for version, rule in changes if version > began))]
        told = json.loads(said.out)
        del told["type"]
        if told not in possible:
            self.run.complain(f"retention: {client.process} printed {told} of {type!r}, not one of {possible}")

    # How they are used

    async def _use(self, client: Client, *arguments: str) -> Answer:
        """Use a verb, and return what it has printed.

        Raises:
            JobsError, TimeoutError: what it has ended with.
            AnswerIsNo: it says so itself.
        """
        said = await command_line(client.jobs, [*arguments, "--json"])
        complaint = said.complaint()
        if complaint is not None:
            self.run.complain(f"console: {arguments} in {client.process} {complaint}")
        if said.error is not None:
            raise said.error
        return said

    def _options(self, client: Client) -> dict[str, Any]:
        """Return priority and run_at of a job, or nothing; times as they can be written."""
        options = self.some_options(client)
        if "run_at" in options:
            options["run_at"] = datetime.fromtimestamp(round(options["run_at"], 3), UTC)
        return options

    def _found(self, version: int) -> dict[tuple[JobType, JobId], State]:
        """Return the jobs that were there at a version, and what they were, of the types that exist now."""
        exist = self.run.history.model.timeouts
        known = {key: self.run.history.states(*key) for key in self.run.history.known() if key[0] in exist}
        last = {key: [each for each in states if each.version <= version][-1:] for key, states in known.items()}
        return {key: states[0] for key, states in last.items() if states and states[0].state is not JobState.REMOVED}

    def _of(self, found: dict[tuple[JobType, JobId], State], type: JobType) -> Collection[JobId]:
        return [id for other, id in found if other == type]


def _names(*names: JobType | JobId) -> list[str]:
    return [shown(name) for name in names]


def _flags(options: dict[str, Any]) -> list[str]:
    priority = ["--priority", priority_text(options["priority"])] if "priority" in options else []
    return priority + (["--at", options["run_at"].isoformat()] if "run_at" in options else [])


def _rows(said: Answer) -> list[dict[str, Any]]:
    return [*map(row_of, said.out.splitlines())]


def _job(said: Answer) -> Job | bool | None:
    """Return the job that a verb has changed; True if it shows nothing of its data, None if it shows another job."""
    job, told = said.value, row_of(said.out)
    is_same = (told["type"], told["id"], told["data"]) == (shown(job.type), shown(job.id), job.data)
    if not is_same or told["state"] != job.state.value:
        return None
    # The change is done, but what is secret could not be read any more.
    return True if job.data == REDACTED else job


def _removal(said: Answer) -> Removal | None:
    told: str = json.loads(said.out)["removal"]
    return Removal(told) if told == said.value else None


def _is_told(out: str, type: JobType, id: JobId, state: State) -> bool:
    """Whether what is printed of a job is what it was."""
    told = row_of(out)
    is_it = (told["type"], told["id"], told["state"]) == (shown(type), shown(id), state.state.value)
    outcome = None if state.outcome is None else state.outcome.value
    return is_it and told["data"] == state.data and told["outcome"] == outcome and told["cancel"] == state.canceled


def _fits(state: State | None, wanted: JobState | None) -> bool:
    """Whether a job is there, in the state that is asked for."""
    return state is not None and state.state is not JobState.REMOVED and (wanted is None or state.state is wanted)


def _counts(row: dict[str, Any]) -> dict[str, int]:
    return {name: row[name] for name in ("ready", "scheduled", "running", "succeeded", "failed", "canceled")}
