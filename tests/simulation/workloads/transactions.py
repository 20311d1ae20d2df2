"""Those who do several things in one transaction, beside keys of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

from jobs_service import JobExists, JobId, JobNotFound, JobTransaction, JobType, NoTypeTimeout, WorkerConflict
from tests.simulation.calls import Call
from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload

_MARKS = b"marks/"


class Transactions(Workload):
    """Adds, resubmits and removes in one transaction with a key that says so; and accepts that are finished at once."""

    name = "transactions"
    weight: ClassVar[int] = 2

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._marked: list[list[Call]] = []

    async def step(self, client: Client) -> None:
        if self.random.random() < 0.4:
            await self._accept_and_finish(client)
            return
        calls: list[Call] = []
        for _ in range(self.random.randint(2, 4)):
            name = self.random.choice(["add", "add", "resubmit"])
            calls.append(client.begin(name, self.some_type(), self.some_id()))
        rule = self.random.choice(["error", "resubmit", "ignore"])
        mark = _MARKS + str(len(self._marked)).encode()
        self._marked.append(calls)

        async def several(tx: JobTransaction) -> None:
            tx.kv.add(mark, b"\x01")
            for call in calls:
                assert call.id is not None
                if call.name == "add":
                    await tx.add(call.type, call.id, client.data(call), if_exists=rule)  # type: ignore[arg-type]
                else:
                    await tx.resubmit(call.type, call.id, data=client.data(call))

        with contextlib.suppress(JobExists, JobNotFound, NoTypeTimeout):
            await client.transact(calls, several)

    async def _accept_and_finish(self, client: Client) -> None:
        """Take a job and finish it, and perhaps add the next one, all at once."""
        type, id = self.some_type(), self.some_id()
        finish = client.begin("finish", type, None)
        add = client.begin("add", type, id)
        took: list[tuple[JobType, JobId]] = []

        async def at_once(tx: JobTransaction) -> bool:
            took.clear()
            job = await tx.accept(type)
            if job is None:
                return False
            took.append((job.type, job.id))
            await tx.finish(job, client.data(finish))
            await tx.add(type, id, client.data(add), if_exists="resubmit")
            return True

        with contextlib.suppress(NoTypeTimeout, WorkerConflict):
            if not await client.transact([finish, add], at_once):
                # There was nothing to do: neither was carried out.
                finish.outcome = add.outcome = "nothing"

    def check(self) -> Iterator[str]:
        """The mark of a transaction is there if and only if its operations are, and once."""
        versions = self.run.world.cluster.versions
        for number, calls in enumerate(self._marked):
            value = versions.get(_MARKS + str(number).encode())
            done = {bool(call.effects) for call in calls}
            if len(done) > 1:
                yield f"torn: of {[str(call) for call in calls]} some were carried out and some were not"
            elif value != (b"\x01" if True in done else None):
                yield f"torn: the mark {number} is {value!r}, its operations were carried out: {done}"
