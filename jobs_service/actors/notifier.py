"""The notifier of one type: finds out what became of the subscribed jobs and tells their subscribers. Floor: actors.

It is told that the type had activity (by its type monitor) or that there are new subscriptions (by the hub), and then
looks: reads the records of all subscribed jobs, in batches, and passes on what is new. Looks follow each other, so that
no subscriber is told something older after something newer.
"""

from __future__ import annotations

import asyncio
from typing import Final

from jobs_service import json_data, notes
from jobs_service.actors.context import Context, log
from jobs_service.actors.subscriptions import Hub, Target
from jobs_service.actors.type_monitor import TypeMonitor
from jobs_service.errors import JobNotFound, job_name
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.record import Record
from jobs_service.model import JobEvent, JobState
from jobs_service.supervision import Actor

_LOOK: Final = "look"


class Notifier(Actor):
    """Tells the subscribers of one type's jobs.

    Args:
        context: the service's.
        keys: of the type.
        hub: where the subscriptions are.
    """

    def __init__(self, context: Context, keys: TypeKeys, hub: Hub) -> None:
        super().__init__(f"notifier {keys.type!r}")
        self._context = context
        self._keys = keys
        self._hub = hub
        self._log = log.bind(type=keys.type)
        self._asked = False
        self._look_took = 0.0

    async def init(self) -> None:
        self._hub.listen(self._keys, self._ask)
        monitor = TypeMonitor(self._context, self._keys, self._activity)
        self.spawn_link(monitor.run(), "type monitor")
        # Subscriptions may have outlived the notifier before this one.
        self._ask()

    async def terminate(self) -> None:
        self._hub.listen(self._keys, None)

    async def handle(self, message: object) -> None:
        if message != _LOOK:
            await super().handle(message)
        self._asked = False
        targets = self._hub.targets(self._keys)
        if targets:
            time = asyncio.get_running_loop().time
            began = time()
            wanted = list(targets)
            size = self._context.settings.notifier_batch
            for start in range(0, len(wanted), size):
                await self._look(wanted[start : start + size])
            self._look_took = time() - began

    def _ask(self) -> None:
        """Have a look taken, unless one is to come anyway."""
        if not self._asked:
            self._asked = True
            self.cast(_LOOK)

    def _activity(self) -> float:
        self._ask()
        return self._look_took

    async def _look(self, data_keys: list[bytes]) -> None:
        """Read the records of these jobs in one state, and tell their subscribers what is new."""
        by_key = self._hub.targets(self._keys)
        # Who subscribes during the read may be there because of something that it does not show yet.
        asking = [list(by_key.get(data_key, ())) for data_key in data_keys]
        raws = await self._context.retried(
            lambda: self._context.read(lambda transaction: transaction.get_many(data_keys)), type=self._keys.type
        )
        by_key = self._hub.targets(self._keys)
        for data_key, targets, raw in zip(data_keys, asking, raws, strict=True):
            for target in targets:
                if target not in by_key.get(data_key, ()):
                    continue
                self._tell(target, raw)
                if target.ended:
                    self._hub.discard(target)

    def _tell(self, target: Target, raw: bytes | None) -> None:
        told = target.told
        if raw is None:
            if told is None:
                target.fail(
                    JobNotFound(
                        f"there is no job {job_name(target.keys.type, target.id)}", type=target.keys.type, id=target.id
                    )
                )
            else:
                target.tell(JobEvent(target.keys.type, target.id, JobState.REMOVED, None, None, None))
            return
        if raw == target.raw:
            return
        record = Record.decode(raw)
        before = None if target.raw is None else Record.decode(target.raw)
        target.raw = raw
        if (
            before is not None
            and before.state is record.state
            and before.json == record.json
            and before.outcome is record.outcome
            and notes.told_of(before.notes) == notes.told_of(record.notes)
        ):
            return  # A heartbeat, a flag, a place in the queue: nothing that subscribers are told.
        target.tell(
            JobEvent(
                target.keys.type,
                target.id,
                record.state,
                json_data.decode(record.json),
                record.outcome,
                record.seq_bytes,
                notes.result_of(record.notes),
                notes.error_of(record.notes),
                notes.progress_of(record.notes),
            )
        )
