"""Random transactions do to every store what they do to a plain dictionary."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs_service.store import KeySelector, Store, Transaction
from tests.contract.model import OPERATIONS, Model, Operation, perform
from tests.contract.support import contents, empty

TRANSACTIONS = st.lists(st.tuples(st.lists(OPERATIONS, max_size=12), st.booleans()), max_size=5)


class Refusal(Exception):
    """Raised by a transaction function on purpose."""


# The examples share the test's store and empty it: opening one costs more than an example.
@given(transactions=TRANSACTIONS)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_random_transactions_do_what_they_do_to_a_dictionary(
    store: Store, transactions: list[tuple[list[Operation], bool]]
) -> None:
    if store.address.startswith("fdb:") and any(_is_undecided(operations) for operations, _ in transactions):
        return
    await empty(store)
    state: dict[bytes, bytes] = {}
    for operations, refuse in transactions:
        state = await run_both(store, state, operations, refuse)
        assert await contents(store) == state


def _is_undecided(operations: list[Operation]) -> bool:
    """Whether keys that cannot be read back meet selectors, which FoundationDB's client resolves in its own way."""
    stamps = any("versionstamped" in str(operation[0]) for operation in operations)
    return stamps and any(isinstance(part, KeySelector) for operation in operations for part in operation)


async def run_both(
    store: Store, state: dict[bytes, bytes], operations: list[Operation], refuse: bool
) -> dict[bytes, bytes]:
    """Run a transaction on the store and on the model, compare every read, and return the model's new state."""
    model = Model(state)
    expected = [model.perform(operation) for operation in operations]

    async def function(tr: Transaction) -> Transaction:
        for operation, result in zip(operations, expected, strict=True):
            assert await perform(tr, operation) == result, operation
        if refuse:
            raise Refusal
        return tr

    try:
        stamp = (await store.transact(function)).stamp.value
    except Refusal:
        return state
    assert (stamp is None) == (not model.log)
    return model.committed(stamp) if stamp is not None else state
