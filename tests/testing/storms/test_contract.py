"""The stores' contract holds for the simulated store in every weather, whatever the order in which tasks run."""

from __future__ import annotations

from tests.contract import (
    test_atomic_add,
    test_model,
    test_ranges,
    test_serializability,
    test_transactions,
    test_versionstamps,
    test_watches,
)

_MODULES = (
    test_atomic_add,
    test_model,
    test_ranges,
    test_serializability,
    test_transactions,
    test_versionstamps,
    test_watches,
)

_NOT_HERE = {
    "test_concurrent_adds_all_count_and_none_is_run_again": "the storm has functions run again for no reason",
    "test_stamps_grow_over_closing_and_opening": "a simulated store has no address to be opened again from",
}

for _module in _MODULES:
    _tests = {_name: _test for _name, _test in vars(_module).items() if _name.startswith("test_")}
    globals().update({_name: _test for _name, _test in _tests.items() if _name not in _NOT_HERE})
