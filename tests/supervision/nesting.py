"""Supervisors within supervisors, for their tests."""

from __future__ import annotations

import pytest

from jobs_service.supervision import ChildSpec, Strategy, SupervisedProcess, Supervisor
from tests.supervision.probes import Trace, of_probes, probe

BOTH = pytest.mark.parametrize("strategy", list(Strategy))


def nested(trace: Trace, inner_names: str = "bc") -> Supervisor:
    """Return top(a, inner(b, c), d), rest_for_one above one_for_one."""
    specs: list[ChildSpec[SupervisedProcess]] = [
        probe("a", trace),
        ChildSpec("inner", lambda: of_probes(trace, inner_names, name="inner", max_restarts=1)),
        probe("d", trace),
    ]
    return Supervisor("top", specs, strategy=Strategy.REST_FOR_ONE, max_restarts=1)
