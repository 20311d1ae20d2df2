"""What a program and its settings say of a handler's options, one after the other: what was said last counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from jobs_service import RunningJob
from jobs_service.settings import HandlerSettings
from tests.simulation.drills.drill import Drill

_VALUES: Final[dict[str, Sequence[float]]] = {
    "slots": (1, 2, 5),
    "max_churn": (1, 7),
    "interval": (30.0, 90.0),
    "max_history": (4, 9),
}
"""What may be said of a handler while it runs."""


async def say_options(drill: Drill) -> None:
    """Configure handlers, and give them other settings, in any order: they are as was said, and others as they were."""
    random = drill.random
    service = drill.client.process.service(supervise=False)
    names: list[str] = [f"{drill.type} {letter}" for letter in "ab"]
    registered: dict[str, dict[str, Any]] = {}
    for name in names:
        service.handler(name, **_some(drill, 0.4))(_nothing)
        registered[name] = {each: getattr(service.handlers[name].options, each) for each in _VALUES}
    configured: dict[str, dict[str, Any]] = {name: {} for name in names}
    named: dict[str, dict[str, Any]] = {name: {} for name in names}
    for _ in range(random.randint(6, 14)):
        if random.random() < 0.5:
            name, said = random.choice(names), _some(drill, 0.3)
            service.configure(name, **said)
            configured[name] |= said
            named[name] = {each: value for each, value in named[name].items() if each not in said}
        else:
            named = {name: _some(drill, 0.3) if random.random() < 0.7 else {} for name in names}
            handlers = {name: HandlerSettings(**said) for name, said in named.items() if said}
            service.reload(service.settings.model_copy(update={"handlers": handlers}))
        for name in names:
            found = {each: getattr(service.handlers[name].options, each) for each in _VALUES}
            wanted = {**registered[name], **configured[name], **named[name]}
            if found != wanted:
                drill.complain(f"the options of {name!r} are {found}, not {wanted}")
                return


async def _nothing(job: RunningJob) -> None:
    """Do nothing."""


def _some(drill: Drill, share: float) -> dict[str, Any]:
    """Return some options, and what they are to be."""
    return {name: drill.random.choice(values) for name, values in _VALUES.items() if drill.random.random() < share}
