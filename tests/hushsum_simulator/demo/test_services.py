"""The aggregator as a process of the simulator's."""

from pathlib import Path

import pytest

from hushsum_proto.credentials import Credentials
from hushsum_proto.errors import CredentialsError
from hushsum_simulator.console import Console
from hushsum_simulator.demo.services import Server
from hushsum_simulator.errors import ServerError, ServiceError
from tests.plans import small_plan

pytestmark = pytest.mark.usefixtures("sources_on_path")


async def test_a_killed_server_comes_back_with_its_data_and_another_port(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(small_plan().to_bytes())
    async with Server(tmp_path, plan, partitions=2) as server:
        async with Console(server.address) as console:
            assert (await console.plan()).id == small_plan().id
        await server.kill()
        with pytest.raises(ServerError, match="ended with status -9"):
            server.check_running()
        await server.start()
        assert server.starts == 2
        async with Console(server.address) as console:
            assert (await console.status()).partitions == 2
            with pytest.raises(ServiceError, match="window"):
                await console.release()


async def test_a_server_that_cannot_start_says_why_in_its_own_words(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(b"{}")
    with pytest.raises(ServerError, match="ended with status 1: aggregator: format: got None, expected 1"):
        await Server(tmp_path, plan, partitions=1).start()


async def test_nobody_at_the_other_end_is_one_line() -> None:
    async with Console("127.0.0.1:1") as console:
        with pytest.raises(ServiceError, match=r"^127\.0\.0\.1:1: no service answers here") as caught:
            await console.status()
    assert "\n" not in str(caught.value)


async def test_files_that_cannot_be_used_are_told_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"ca: .* cannot be read"):
        await Console("127.0.0.1:1", Credentials(ca=tmp_path / "nowhere.pem")).__aenter__()
