"""Prometheus' own tool reads the alert rules and the metrics; Debian's package `prometheus` has it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from jobs_service import JobsService, metrics

ALERTS = Path(__file__).parents[2] / "docs" / "monitoring" / "alerts.yml"
TESTS = Path(__file__).parent / "alerts.yml"

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def promtool(*arguments: str | Path, given: bytes | None = None) -> None:
    """Fail unless promtool is content."""
    done = subprocess.run(["promtool", *arguments], input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()


@needs_promtool
def test_prometheus_takes_the_rules() -> None:
    promtool("check", "rules", ALERTS)


@needs_promtool
def test_each_alert_fires_when_it_should_and_not_otherwise() -> None:
    promtool("test", "rules", TESTS)


def test_each_alert_is_tried_both_ways() -> None:
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]
    tried: dict[str, set[bool]] = {}
    for test in yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"]:
        for each in test["alert_rule_test"]:
            tried.setdefault(each["alertname"], set()).add(bool(each.get("exp_alerts")))
    assert tried == {rule["alert"]: {True, False} for rule in rules}


@needs_promtool
async def test_prometheus_finds_nothing_to_complain_of_in_the_metrics() -> None:
    async with JobsService("memory:") as jobs:
        for type in ("email", ("tuple", 1), 'of "odd"\nletters\\'):
            await jobs.set_type_timeout(type, 30)
            await jobs.add(type, "a")
            job = await jobs.accept(type)
            assert job is not None
            await job.finish()
        promtool("check", "metrics", given=await metrics.text(jobs))
