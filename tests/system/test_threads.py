"""What the loop's thread and a store's threads share."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from jobs_service.layer import keyspace
from jobs_service.layer.keyspace import Keyspace, TypeKeys


@pytest.mark.parametrize("type", ["t1", b"t1", 1, ("t", 1)])
def test_threads_that_meet_a_type_at_the_same_time_mean_the_same_keys(
    type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs are told apart by their type's keys being equal."""
    keys = Keyspace(b"prefix")
    met: list[TypeKeys] = []

    def slow(*arguments: Any) -> TypeKeys:
        monkeypatch.setattr(keyspace, "TypeKeys", TypeKeys)
        other = threading.Thread(target=lambda: met.append(keys.of(type)))
        other.start()
        other.join()
        return TypeKeys(*arguments)

    monkeypatch.setattr(keyspace, "TypeKeys", slow)
    met.append(keys.of(type))
    met.append(keys.of(type))
    assert met[0] == met[1] == met[2]
    assert len(set(met)) == 1
