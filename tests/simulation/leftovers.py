"""What open services still hold of what nobody needs any more: watches, entries of tables, actors, timers.

What ends is given back at once, or at the next look of whoever tidies up. So nothing of it stays while nothing takes
time, whoever was canceled, closed or crashed before. What a service holds after it was left is checked by `held_after`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobs_service import JobsService
from jobs_service.actors.notifier import Notifier
from jobs_service.actors.subscriptions import Hub, Mailbox, SubscribedJob
from jobs_service.actors.type_server import TypeServer
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.store.base import Watch
from jobs_service.supervision import Actor
from jobs_service.supervision.supervisor import Supervising
from jobs_service.testing import Process, SimulatedTransaction
from jobs_service.testing.loop import OWNER
from tests.simulation.rows import PREFIX, section

if TYPE_CHECKING:
    from tests.simulation.run import Run

_EVERY: Final = 1.0
"""Seconds between two looks, at least."""

_MOMENT: Final = 3.0
_AWHILE: Final = 5.0


class Suspect(NamedTuple):
    """Something that may be there for a while only.

    Attributes:
        what: it, or what stands for it.
        seconds: for which it may be there.
        why: it is there, in words.
    """

    what: Hashable
    seconds: float
    why: str


class Leftovers:
    """Looks now and then. An observer of the cluster."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._next = 0.0
        self._since: dict[Hashable, float] = {}
        self._subscribed: dict[Hub, Counter[TypeKeys]] = {}
        self._awake = section("AWAKE")

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer."""
        now = self._run.world.loop.time()
        if now >= self._next:
            self._next = now + _EVERY
            self._look(now)

    def _look(self, now: float) -> None:
        run, before = self._run, self._since
        quick = run.quiet.quick_since()
        self._since = {}
        for process, suspect in self._suspects():
            key = (process, suspect.what)
            since = before.get(key, now)
            if since < quick or not (process.alive and process.running):
                since = now
            elif now - since > suspect.seconds:
                run.complain(f"left over: {process}: {suspect.why}, for {now - since:.3f} s")
                since = float("inf")
            self._since[key] = since

    def _suspects(self) -> Iterator[tuple[Process, Suspect]]:
        run = self._run
        for process, watch in self._watches():
            # Those on keys of applications are their own.
            suspect = _of_watch(watch) if watch.key.startswith(PREFIX) else None
            if suspect is not None:
                yield process, suspect
        for process, jobs in run.services.items():
            if not process.alive:
                continue
            for complaint in (*_wrong_in(jobs._hub), *_wrong_lines(jobs)):
                run.complain(f"left over: {process}: {complaint}")
            for suspect in self._of_service(jobs):
                yield process, suspect
        for process, suspect in _of_timers(run):
            yield process, suspect

    def _watches(self) -> Iterator[tuple[Process, Watch]]:
        """Yield the watches of services: users of the store have watches of their own, and may forget them."""
        run = self._run
        if run.machine is None:
            for group in run.world.cluster._watches.values():
                for watch, store in group.items():
                    if store.process is not None and watch.key.startswith(PREFIX):
                        yield store.process, watch
            return
        for each in run.machine.stores:
            for watches in each._watches._by_key.values():
                for watch in watches:
                    if watch.key.startswith(PREFIX):
                        yield each.process, watch

    def _of_service(self, jobs: JobsService) -> Iterator[Suspect]:
        hub = jobs._hub
        listening: set[Any] = set()
        for keys, listener in hub._listeners.items():
            notifier: Any = getattr(listener, "__self__", None)
            listening.add(keys)
            if notifier is not None and not notifier.is_alive:
                yield Suspect(notifier, _MOMENT, f"{notifier.name} has ended, and is to be told of new subscriptions")
        for actor in _actors(jobs):
            if isinstance(actor, Notifier):
                for mailbox in _mailboxes(hub, actor):
                    for arrival in mailbox._arrivals:
                        if arrival.done():
                            yield Suspect(arrival, _MOMENT, f"{actor.name} tells somebody who does not wait any more")
            if isinstance(actor, Notifier) and not hub.targets(actor._keys):
                settings = jobs.settings
                unused = 8 / 3 * settings.type_check_period + _AWHILE
                # Whoever has subscribed in between, however briefly, has had it stay.
                what = (actor, self._subscriptions(hub)[actor._keys])
                yield Suspect(what, unused, f"{actor.name} is there, and nobody has subscribed")
            elif isinstance(actor, TypeServer):
                yield from self._of_type_server(actor)
            for other in actor._monitored:
                if other.has_ended:
                    yield Suspect((actor, other), _MOMENT, f"{actor.name} waits for the end of {other.name}")
        if jobs._tree.root is not None:
            for keys in hub.types():
                if keys not in listening:
                    yield Suspect(("no notifier", keys.name), _MOMENT, f"nobody tells subscribers of {keys.name}")

    def _subscriptions(self, hub: Hub) -> Counter[TypeKeys]:
        """Return how many subscriptions to each type there have been since this was asked first."""
        counted = self._subscribed.get(hub)
        if counted is None:
            counted, add = self._subscribed.setdefault(hub, Counter()), hub.add

            def count_and_add(targets: Sequence[SubscribedJob]) -> None:
                counted.update(target.keys for target in targets)
                add(targets)

            hub.add = count_and_add  # type: ignore[method-assign]
        return counted

    def _of_type_server(self, server: TypeServer) -> Iterator[Suspect]:
        """Exactly the types that are awake have monitors, and exactly these are sampled."""
        versions, head = self._run.world.cluster.versions, self._awake
        alive = {monitor for monitor in server._monitors.values() if monitor.is_alive}
        for type, monitor in server._monitors.items():
            if monitor not in alive:
                yield Suspect(monitor, _MOMENT, f"{monitor.name} has ended, and is in the table")
            elif versions.get(head + type) is None and not self._run.is_damaged:
                yield Suspect(("asleep", monitor), _AWHILE, f"{monitor.name} is there, and its type is not awake")
        for keys, notifier in server._notifiers.items():
            if not notifier.is_alive:
                yield Suspect(notifier, _MOMENT, f"{notifier.name} has ended, and is in the table of {keys.name}")
        for group in server._sampler._by_tick.values():
            for sampled in group:
                listener: Any = getattr(sampled._listener, "__self__", None)
                if sampled.removed or (listener is not None and not listener.is_alive):
                    yield Suspect(sampled, _MOMENT, f"{sampled.keys.name} is sampled for nobody")


def _of_watch(watch: Watch) -> Suspect | None:
    """Whoever has made a watch waits for it."""
    if watch.fired or watch._event._waiters:
        return None
    callback: Any = watch._callback
    if callback is None:
        return Suspect(watch, _MOMENT, f"nobody waits for the watch on {watch.key!r}")
    for cell in getattr(callback, "__closure__", None) or ():
        actor = cell.cell_contents
        if isinstance(actor, Actor) and (actor.has_ended or vars(actor).get("_watch") is not watch):
            return Suspect(watch, _MOMENT, f"{actor.name} does not know any more of its watch on {watch.key!r}")
    return None


def _wrong_in(hub: Hub) -> Iterator[str]:
    """Yield what is wrong with a hub: all that there is was asked for, and waits for something."""
    of_mailbox = Counter[Mailbox]()
    for keys, by_key in hub._targets.items():
        if not by_key or not all(by_key.values()):
            yield f"nobody has subscribed to {keys.name}, and it is in the table"
        for targets in by_key.values():
            for target in targets:
                of_mailbox[target.mailbox] += 1
                if target.ended:
                    yield f"{keys.name}/{target.id!r} has ended for a subscriber, and is in the table"
    for mailbox, number in of_mailbox.items():
        if number > mailbox.open_targets:
            yield f"a subscriber waits for {number} jobs, and thinks of {mailbox.open_targets}"
        if {*mailbox._order} != mailbox._newest.keys() or len(mailbox._order) != len(mailbox._newest):
            yield f"a mailbox has {len(mailbox._newest)} events in the order of {len(mailbox._order)}"
        if len(mailbox._order) > mailbox.open_targets:
            yield f"a mailbox has {len(mailbox._order)} events, of {mailbox.open_targets} jobs"
    for keys in hub._fresh:
        if keys not in hub._targets:
            yield f"{keys.name} was subscribed to just now, and is not in the table"


def _mailboxes(hub: Hub, notifier: Notifier) -> Iterator[Mailbox]:
    """Yield where the events of a notifier go to, each once."""
    targets = [target for each in hub.targets(notifier._keys).values() for target in each]
    yield from dict.fromkeys(target.mailbox for target in targets)


def _wrong_lines(jobs: JobsService) -> Iterator[str]:
    for name, line in jobs._waiting._lines.items():
        if line.inside <= 0 or len(line.behind) > line.inside:
            yield f"{line.inside} workers stand in the line {name}, {len(line.behind)} of them behind the first"


def _actors(jobs: JobsService) -> Iterator[Actor]:
    """Yield the actors of a service's tree that are alive."""
    waiting = [] if jobs._tree.root is None else [*jobs._tree.root.children]
    while waiting:
        process = waiting.pop()
        if isinstance(process, Supervising):
            waiting += process.children
        elif isinstance(process, Actor) and process.is_alive:
            yield process


def _of_timers(run: Run) -> Iterator[tuple[Process, Suspect]]:
    """Whoever sets a timer anew cancels the one before."""
    seen: set[Any] = set()
    for _, timer in run.world.loop._scheduled:
        callback: Any = timer._callback
        of = getattr(callback, "__self__", None)
        if timer._cancelled or of is None:
            continue
        owner = timer._context.get(OWNER)
        if not isinstance(owner, Process):
            continue
        key = (id(of), callback.__name__, tuple(map(id, timer._args)))
        if key in seen:
            yield owner, Suspect(timer, _MOMENT, f"two timers are set for {callback.__qualname__}")
        seen.add(key)
