"""Jobs of all types by the beginning of their ids."""

from jobs_service import JobsService
from jobs_service.service import queries
from tests.service.support import T1, T2
from tests.stores import QUICKEST_AND_CLUSTER, one_of

# What they do is above the stores, which keep their contract: one, and the cluster, are enough.
store_kind = one_of(QUICKEST_AND_CLUSTER)


async def test_jobs_of_all_types_are_found_by_the_beginning_of_their_ids(quiet: JobsService) -> None:
    for type, ids in ((T1, ("order-1", "order-2", "other")), (T2, ("order-1", "ordes")), ("empty", ())):
        await quiet.set_type_timeout(type, 60)
        for id in ids:
            await quiet.add(type, id)
    types = [T1, T2, "empty"]
    found, looked_at = await queries.beginning_with(quiet._access, types, "order-", 20, 10)
    assert (found, looked_at) == ([(T1, "order-1"), (T1, "order-2"), (T2, "order-1")], 3)
    assert await queries.beginning_with(quiet._access, types, "x", 20, 10) == ([], 3)
    assert (await queries.beginning_with(quiet._access, types, "o", 4, 10))[0] == [(T1, "order-1"), (T2, "order-1")]


async def test_a_search_ends_with_enough_jobs_or_its_time(quiet: JobsService) -> None:
    types = [f"type-{number:03}" for number in range(120)]
    for type in types:
        await quiet.set_type_timeout(type, 60)
        await quiet.add(type, "one")
    found, looked_at = await queries.beginning_with(quiet._access, types, "one", 10, 10)
    assert (len(found), looked_at) == (10, 50)
    assert (await queries.beginning_with(quiet._access, types, "two", 10, 0))[1] == 50
