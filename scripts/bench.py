"""Measures the figures of docs/performance.md: prints a table for people, or one JSON line per figure.

Every figure is measured through the public interface only. `--store fdb:FILE` measures on a cluster, with other goals;
the jobs that are in a given store are removed. `--against DIR` measures another checkout of this
repository as well, in turn with this one, each time in a process of its own, and prints how fast this one is beside it,
the median of `--pairs N`: so a change is shown before and after in one run. The garbage collector is set as
`jobs-service serve` sets it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import structlog

from benchmarks.base import Figure
from benchmarks.contention import ContentionMeasurements, contender
from benchmarks.events import EventMeasurements, other
from benchmarks.http import HttpMeasurements
from benchmarks.monitoring import MonitoringMeasurements
from benchmarks.outbox import OutboxMeasurements
from benchmarks.queue import QueueMeasurements
from benchmarks.runner import RunnerMeasurements, run_no_ops
from jobs_service.cli.daemon import GC_THRESHOLDS


class Bench(
    QueueMeasurements,
    ContentionMeasurements,
    EventMeasurements,
    MonitoringMeasurements,
    OutboxMeasurements,
    RunnerMeasurements,
    HttpMeasurements,
):
    """All measurements by name."""


def _measure(name: str, arguments: argparse.Namespace) -> Iterator[Figure]:
    yield from asyncio.run(Bench(arguments.store, arguments.scale).measure(name))


def _measure_apart(checkout: Path, name: str, arguments: argparse.Namespace) -> list[Figure] | str:
    """Measure a checkout with this very program, in a process of its own; return the figures, or why it has none."""
    command = [sys.executable, __file__, "--json", "--scale", str(arguments.scale), name]
    if arguments.default_gc:
        command.append("--default-gc")
    if arguments.store:
        command += ["--store", arguments.store]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return [Figure(**json.loads(line)) for line in done.stdout.splitlines()]


def _beside(name: str, arguments: argparse.Namespace) -> Iterator[Figure]:
    """Measure this checkout and another one in turn; yield the figures of this one, with how fast it is beside that."""
    here, there = Path(__file__).parents[1], arguments.against.resolve()
    sides: list[tuple[Path, list[list[Figure]]]] = [(there, []), (here, [])]
    for pair in range(arguments.pairs):
        for checkout, found in sides[::-1] if pair % 2 else sides:
            figures = _measure_apart(checkout, name, arguments)
            if isinstance(figures, str):
                why = f"{name}: {checkout} cannot be measured: {figures}"
                if checkout == here:
                    raise SystemExit(why)
                print(why, file=sys.stderr)
                return
            found.append(figures)
    for others, ours in zip(*(zip(*found, strict=True) for _, found in sides), strict=True):
        ratios = [
            mine.value / other.value if mine.higher else other.value / mine.value
            for mine, other in zip(ours, others, strict=True)
        ]
        spread = f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""
        told = f"{ours[0].what}   speed beside the other {median(ratios):.2f}{spread}"
        yield dataclasses.replace(ours[0], value=median(each.value for each in ours), what=told)


MEASUREMENTS = [
    "add_concurrent",
    "add_many",
    "accept_finish",
    "accept_many_finish",
    "rows",
    "outbox",
    "contention",
    "add_single",
    "sync_add",
    "finish_to_event",
    "subscriptions",
    "pending_growth",
    "many_types",
    "idle_types",
    "lost_jobs",
    "other_process",
    "runner",
    "runner_two_processes",
    "runner_isolated",
    "runner_types",
    "runner_idle",
    "http_jobs",
    "http_client",
    "http_overview",
    "http_events",
]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("measurements", nargs="*", help=f"of {', '.join(MEASUREMENTS)}; all when none is named")
    parser.add_argument("--json", action="store_true", help="one JSON object per figure")
    parser.add_argument("--store", help="a store address; lmdb: or sqlite: in a temporary directory, lmdb: by default")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of jobs")
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout to measure in turn")
    parser.add_argument("--pairs", type=int, default=1, metavar="N", help="how often both are measured, one by default")
    parser.add_argument(
        "--default-gc",
        action="store_true",
        help="leave Python's garbage collector as it is, unlike `jobs-service serve`",
    )
    parser.add_argument("--other", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--runner", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--contender", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.other:
        asyncio.run(other(arguments.other))
        return
    unknown = [name for name in arguments.measurements if name not in MEASUREMENTS]
    if unknown:
        parser.error(f"no measurement {unknown[0]!r}; there are {', '.join(MEASUREMENTS)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    if not arguments.default_gc:
        gc.set_threshold(*GC_THRESHOLDS)
    if arguments.runner:
        asyncio.run(run_no_ops(arguments.runner))
        return
    if arguments.contender:
        address, spread, workers = arguments.contender
        asyncio.run(contender(address, spread, int(workers)))
        return
    on_a_cluster = str(arguments.store).startswith("fdb:")
    names = arguments.measurements or [name for name in MEASUREMENTS if name != "contention" or on_a_cluster]
    if arguments.pairs < 1:
        parser.error(f"--pairs {arguments.pairs}: it must be 1 or more")
    if "contention" in names and not on_a_cluster:  # its processes have many services each on one store
        parser.error("contention is measured on a cluster: --store fdb:FILE")
    if not arguments.json:
        print(f"{'figure':22} {'value':>12}     {'goal':>10}   what")
    for name in names:
        for figure in _beside(name, arguments) if arguments.against else _measure(name, arguments):
            if arguments.json:
                print(json.dumps(dataclasses.asdict(figure)), flush=True)
                continue
            sign = ">=" if figure.higher else "<="
            print(
                f"{figure.name:22} {figure.value:>12,.2f} {figure.unit:2} {sign} {figure.goal:>8,g}   "
                f"{'met   ' if figure.met else 'MISSED'} {figure.what}",
                flush=True,
            )


if __name__ == "__main__":
    main()
