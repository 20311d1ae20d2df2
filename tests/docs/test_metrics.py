"""The page of metrics with its example, and the files of monitoring: every metric that they use is documented."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT, examples, read
from tests.docs.running import run

[EXAMPLE] = examples("docs/metrics.md")
MONITORING = ROOT / "docs" / "monitoring"
ALERTS: dict[str, Any] = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))
KINDS = dict(re.findall(r"^\| `(jobs_service_\w+)` \| (\w+) \|", read("docs/metrics.md"), re.MULTILINE))
LABELS = {"type", "state", "event", "version", "store", "le", "instance", "job", "id", "source", "target", "outbox"}
FUNCTIONS = {"max", "sum", "count", "rate", "increase", "histogram_quantile", "by", "unless", "and", "label_values"}


async def test_the_example_answers_a_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_SERVICE_STORE", "memory:")
    names = await run(EXAMPLE)
    async with names["jobs"]:
        assert b"jobs_service_up 1.0" in await names["scrape"]()


def expressions() -> Iterator[str]:
    """Yield every expression of the alerts and of the dashboard."""
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "5m").replace("$type", "a|b")
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def known_metrics() -> set[str]:
    """Return the names that samples of the documented metrics have."""
    return {
        name + end
        for name, kind in KINDS.items()
        for end in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    }


@pytest.mark.parametrize("expression", [*expressions()])
def test_every_expression_uses_metrics_and_labels_that_there_are(expression: str) -> None:
    bare = re.sub(r'"[^"]*"', '""', expression)
    words = set(re.findall(r"[a-z_]\w*", re.sub(r"\[\w+\]|\b[\d.]+\w*", " ", bare)))
    metrics = {word for word in words if word.startswith("jobs_service_")}
    assert metrics
    assert metrics <= known_metrics()
    assert words - metrics <= FUNCTIONS | LABELS
    open_brackets: list[str] = []
    for bracket in re.sub(r"[^()\[\]{}]", "", bare):
        if bracket in ")]}":
            assert open_brackets.pop() + bracket in ("()", "[]", "{}")
        else:
            open_brackets.append(bracket)
    assert not open_brackets


def test_every_documented_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    used = " ".join(expressions())
    assert [name for name in KINDS if name not in used] == []
