"""What handlers declare of their types, and what arguments they take: it is kept as the page on handlers says."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, TypedDict

from jobs_service import InvalidJob, InvalidSettings, JobsError, JobsService, RunningJob
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.handling import log_of, opened, running

_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "timeout": (50.0, 60.0, 70.0),
    "keep": (None, 600.0, 86_400.0),
    "keep_failed": (None, 700.0),
    "redact": (None, ("card.number",), ("a", "b.c")),
}
"""What a handler may declare."""


async def declare_options(drill: Drill) -> None:
    """Start handlers that declare something, and set something else meanwhile: the latest change counts."""
    declared: dict[str, Any] = {}
    in_force: dict[str, Any] = {"redact": ()}
    wanted = _some(drill)
    for number in range(drill.random.randint(3, 5)):
        if drill.random.random() < 0.5:
            wanted = {**wanted, **_some(drill, 0.4)}
        _decide(wanted, declared, in_force)
        await _start(drill, wanted, in_force, number)
        await _look(drill, in_force)
        if drill.random.random() < 0.6:
            await _operate(drill, in_force)
            await _look(drill, in_force)


def _some(drill: Drill, share: float = 1.0) -> dict[str, Any]:
    return {name: drill.random.choice(values) for name, values in _VALUES.items() if drill.random.random() < share}


def _decide(wanted: dict[str, Any], declared: dict[str, Any], in_force: dict[str, Any]) -> None:
    """What a program declares anew counts; what it has declared before does not change what was set since."""
    kept = ("keep", "keep_failed")
    for names in (("timeout",), kept, ("redact",)):
        said = [wanted[name] for name in names]
        if names == ("redact",) and said == [None]:
            continue
        if [declared.get(name, "nothing") for name in names] != said:
            in_force.update({name: wanted[name] for name in names})
        declared.update({name: wanted[name] for name in names})


async def _start(drill: Drill, wanted: dict[str, Any], in_force: dict[str, Any], number: int) -> None:
    """Run a handler twice in one service; what differs from what it declares is said each time."""
    service = drill.client.process.service(supervise=False)
    service.handler(drill.type, **wanted)(_nothing)
    service.every(1000.0 + number, type=("ticks", drill.type))(_nothing)
    log = log_of(drill)
    before = len(log.of(drill.type, "declared_options_differ"))
    differing = {
        name: (value, in_force[name])
        for name, value in wanted.items()
        if value != in_force[name] and not (name == "redact" and value is None)
    }
    async with opened(drill, service):
        for _ in range(2):
            async with running(drill, service, 20.0, types=drill.random.choice([None, [drill.type]])):
                await asyncio.sleep(0.1)
    said = log.of(drill.type, "declared_options_differ")[before:]
    for _, fields in said:
        told = {name: tuple(pair) for name, pair in fields.items() if name in _VALUES}
        if told != differing:
            drill.complain(f"it is said that {told} differ from what is declared, not {differing}")
    if len(said) != (2 if differing else 0):
        drill.complain(f"{differing} differ from what is declared, and that is said {len(said)} times")


async def _operate(drill: Drill, in_force: dict[str, Any]) -> None:
    """An operator sets something."""
    said = _some(drill)
    match drill.random.choice(["timeout", "retention", "redaction"]):
        case "timeout":
            await drill.jobs.set_type_timeout(drill.type, said["timeout"])
            in_force["timeout"] = said["timeout"]
        case "retention":
            kept = {name: said[name] for name in ("keep", "keep_failed")}
            await drill.jobs.set_retention(drill.type, **kept)
            in_force.update(kept)
        case "redaction":
            paths = said["redact"] or ()
            await drill.jobs.set_redaction(drill.type, paths)
            in_force["redact"] = paths


async def _look(drill: Drill, in_force: dict[str, Any]) -> None:
    retention = await drill.jobs.get_retention(drill.type)
    found = {
        "timeout": await drill.jobs.get_type_timeout(drill.type),
        "keep": retention.keep,
        "keep_failed": retention.keep_failed,
        "redact": (await drill.jobs.get_redaction(drill.type)).paths,
    }
    if found != in_force:
        drill.complain(f"{found} is in force, not {in_force}")


async def _nothing(job: RunningJob) -> None:
    """Do nothing."""


# Arguments


@dataclass
class _Order:
    """What some handlers take."""

    number: int = -1
    day: date | None = None
    tags: tuple[str, ...] = ()


_USUAL: Final = _Order(9)


class _Entry(TypedDict):
    """What others take."""

    number: int
    of: list[_Order]


async def give_arguments(drill: Drill) -> None:
    """Have jobs of handlers that take arguments in every form: each gets what was given to it, or it is refused."""
    forms = _Forms(drill)
    service = drill.client.process.service(supervise=False)
    forms.register(service)
    async with opened(drill, service), running(drill, service, 20.0):
        for name, (given, refused) in forms.wanted.items():
            if refused and drill.random.random() < 0.5:
                await forms.is_refused(service, name, drill.random.choice(refused))
            await forms.give(service, name, drill.random.choice(given))
        await drill.settle()
        for name, given in forms.given.items():
            if forms.got.get(name) != [given]:
                drill.complain(f"{name!r} was given {given!r}, and has got {forms.got.get(name)!r}")
    wrongs: tuple[Any, ...] = (_with_two, _Order, 5, "text")
    for wrong in wrongs:
        try:
            service.every(60.0, type=f"{drill.type} wrong")(wrong)
            drill.complain(f"{wrong!r} is taken for a periodic handler")
        except InvalidSettings:
            pass


async def _with_two(job: RunningJob, to: str, subject: str = "hi") -> None:
    """Nobody gives a periodic handler what it must have."""


class _Forms:
    """Handlers of several forms.

    Attributes:
        wanted: what may be given to each, and what is refused.
        given, got: what was given to each, and what it has got.
    """

    def __init__(self, drill: Drill) -> None:
        order = _Order(1, date(2024, 2, 29), ("a", "b"))
        self._drill = drill
        self.given: dict[str, Any] = {}
        self.got: dict[str, list[Any]] = {}
        self.wanted: dict[str, tuple[list[Any], list[Any]]] = {
            "a dataclass": ([order, _Order(2)], [_Order("no number"), {"number": "2"}, 7]),  # type: ignore[arg-type]
            "a default": ([order, None], []),
            "a mapping": ([{"number": 1, "of": [order, _Order()]}], [{"number": 1}, {"number": 1, "of": [3]}]),
            "a list": ([[], [1, 2, 3]], [["1"], "text"]),
            "a text": (["", "\u00e9"], [5, ["text"]]),
            "several": ([{"to": "ada"}, {"to": "ada", "subject": "s", "n": 3}], [{}, {"to": 1}, {"to": "a", "no": 1}]),
            "no job": ([order], [7]),
        }

    def register(self, service: JobsService) -> None:
        """Make functions the handlers of their types."""

        async def dataclass(job: RunningJob, args: _Order) -> None:
            self._take(job.type, args)

        async def default(job: RunningJob, args: _Order = _USUAL) -> None:
            self._take(job.type, None if args == _USUAL else args)

        async def mapping(job: RunningJob, args: _Entry) -> None:
            self._take(job.type, args)

        async def listed(args: list[int]) -> None:
            self._take((self._drill.type, "a list"), args)

        async def text(job: RunningJob, args: str) -> None:
            self._take(job.type, args)

        async def several(job: RunningJob, to: str, subject: str = "hi", *, n: int = 0) -> None:
            usual = {"to": to, "subject": subject, "n": n}
            self._take(job.type, {"to": to} if (subject, n) == ("hi", 0) else usual)

        async def jobless(name: str, args: _Order) -> None:
            self._take((self._drill.type, name), args)

        functions: dict[str, Callable[..., Awaitable[None]]] = {
            "a dataclass": dataclass,
            "a default": default,
            "a mapping": mapping,
            "a list": listed,
            "a text": text,
            "several": several,
            "no job": functools.partial(jobless, "no job"),
        }
        for name, function in functions.items():
            service.handler((self._drill.type, name), timeout=60.0, max_attempts=1)(function)

    def _take(self, type: Any, args: Any) -> None:
        self.got.setdefault(type[1], []).append(args)

    async def give(self, service: JobsService, name: str, args: Any) -> None:
        """Enqueue a job with arguments, in one of the ways in which they may be given."""
        handler = service.handlers[self._drill.type, name]
        self.given[name] = args
        if args is None:
            await service.enqueue(handler)
        elif name == "several" and self._drill.random.random() < 0.5:
            await service.enqueue(handler, **args)
        elif self._drill.random.random() < 0.5:
            await service.enqueue_many(handler, [args])
        else:
            await service.enqueue(handler, args)

    async def is_refused(self, service: JobsService, name: str, args: Any) -> None:
        """What a handler does not take is refused, and nothing is added."""
        handler = service.handlers[self._drill.type, name]
        try:
            await service.enqueue(handler, args)
        except InvalidJob:
            pass
        except JobsError as error:
            self._drill.complain(f"{args!r} was refused for {name!r} by {error!r}")
        else:
            self._drill.complain(f"{args!r} was taken for {name!r}")
        if jobs := self._drill.all((self._drill.type, name)):
            self._drill.complain(f"{args!r} was refused for {name!r}, and there are {jobs}")
