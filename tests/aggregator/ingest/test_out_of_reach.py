"""Ids so far below the last one that the fold knows nothing of their bytes: spent, never acknowledged."""

from pathlib import Path

import pytest

from hushsum_proto.answers import Answer, Status
from tests.plans import small_plan
from tests.services import Contributor, RawClient, config_of, counted, ends_of, folded_all, service_of

PLAN = small_plan()


@pytest.mark.parametrize("restarted", [False, True])
async def test_an_id_below_reach_is_unknown_at_once_whatever_its_bytes(tmp_path: Path, *, restarted: bool) -> None:
    config = config_of(tmp_path, PLAN)
    contributor = Contributor(PLAN, 3)
    sent = [contributor.delta() for _ in range(100)]
    id, same = sent[3]
    _, other = Contributor(PLAN, 3).delta(5, sequence=3)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        answers = await client.submit(PLAN.id, [data for _, data in sent])
        assert {answer.status for answer in answers} == {Status.ACKNOWLEDGED}
        await folded_all(service)
        if not restarted:
            assert await client.submit(PLAN.id, [same, other]) == [Answer(id, Status.UNKNOWN)] * 2
            assert await ends_of(service) == [100], "nothing of it was appended"
            assert counted(service, "hushsum_folded_total", partition="0", verdict="counted") == 100
            assert counted(service, "hushsum_folded_total", partition="0", verdict="duplicate") == 0
    if restarted:
        async with service_of(config) as service, RawClient(service.grpc) as client:
            assert await client.submit(PLAN.id, [same, other]) == [Answer(id, Status.UNKNOWN)] * 2
            assert await ends_of(service) == [100]


async def test_the_lowest_id_in_reach_is_answered_again(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN)) as service, RawClient(service.grpc) as client:
        contributor = Contributor(PLAN, 3)
        sent = [contributor.delta() for _ in range(100)]
        await client.submit(PLAN.id, [data for _, data in sent])
        await folded_all(service)

        assert (await client.submit_one(PLAN.id, sent[36][1])).status is Status.ACKNOWLEDGED
        assert (await client.submit_one(PLAN.id, sent[35][1])).status is Status.UNKNOWN


async def test_the_next_new_id_is_appended_as_ever(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN)) as service, RawClient(service.grpc) as client:
        contributor = Contributor(PLAN, 3)
        await client.submit(PLAN.id, [contributor.delta()[1] for _ in range(70)])
        await folded_all(service)

        assert (await client.submit_one(PLAN.id, contributor.delta()[1])).status is Status.ACKNOWLEDGED
        assert await ends_of(service) == [71]
