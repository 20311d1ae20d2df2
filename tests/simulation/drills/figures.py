"""What is told of types and jobs as figures: the metrics, and the verbs of the command line, beside what is there."""

from __future__ import annotations

from collections import Counter
from typing import Final

from jobs_service.cli.exits import AnswerIsNo
from jobs_service.metrics.collector import Collector
from jobs_service.metrics.type_labels import OTHERS
from jobs_service.names import shown
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.told import STATES, Told
from tests.simulation.drills.verbs import CHANGING, LOOKING

_TOLERANCE: Final = 0.05


async def tell_figures(drill: Drill) -> None:
    """Fill a store, read its metrics, and use verbs on it: they tell what is there, and nothing that is secret."""
    told = Told(drill)
    async with told.place.jobs:
        await told.fill()
        await _metrics(told)
        for _ in range(3):
            for what in (drill.random.choice(CHANGING), drill.random.choice(LOOKING)):
                try:
                    await what(told)
                except AnswerIsNo as error:
                    if all(each.timeout is not None for each in told.types.values()):
                        drill.complain(f"console: {what.__name__} was refused, and all types are there: {error}")
        if drill.random.random() < 0.5:
            await _metrics(told)


async def _metrics(told: Told) -> None:
    """Read the metrics, with room for series of all types, or of some."""
    random = told.drill.random
    most = random.choice([200, 200, 1, 2])
    collector = Collector(told.place.jobs, most)
    await collector.refresh()
    found: dict[tuple[str, ...], float] = {}
    for family in collector.collect():
        for sample in family.samples:
            named = [value for name, value in sorted(sample.labels.items()) if name != "le"]
            if not sample.name.endswith("_bucket"):
                found[(sample.name.removeprefix("jobs_service_"), *named)] = sample.value
    there = {type: each for type, each in told.types.items() if each.is_there}
    labels = {type: shown(type) if ("jobs", "ready", shown(type)) in found else OTHERS for type in there}
    wanted: Counter[tuple[str, ...]] = Counter({("up",): 1, ("types",): len(there)})
    for type, each in there.items():
        label = labels[type]
        for state in STATES:
            wanted["jobs", state, label] += each.count(state)
        for what in ("added", "started", "succeeded", "failed", "canceled"):
            wanted["events_total", what, label] += each.happened[what]
        wanted["wait_seconds_count", label] += each.happened["started"]
        wanted["run_seconds_count", label] += sum(each.happened[what] for what in ("succeeded", "failed", "canceled"))
        if label != OTHERS:
            wanted["paused", label] += each.paused
            ready = [told.now() - job.since for job in each.jobs.values() if job.state == "ready"]
            oldest = found.get(("oldest_ready_seconds", label))
            if oldest is None or abs(oldest - max(ready, default=0.0)) > _TOLERANCE:
                told.complain(f"metrics: {type!r} has a job ready for {oldest} s; it is {ready}")
    wrong = {name: (found.get(name), value) for name, value in wanted.items() if found.get(name, 0.0) != value}
    if wrong:
        told.complain(f"metrics: what is told and what is there differ: {wrong}")
    own = sum(label != OTHERS for label in labels.values())
    if own != min(most, len(there)):
        told.complain(f"metrics: {own} of {len(there)} types have series of their own, and {most} may")
