"""How a client comes by its plan: from its spool, or at the first connection from the service; checked either way."""

from functools import lru_cache

from edge_client.backoff import BackOff
from edge_client.config import Config
from edge_client.errors import SessionRefusedError, SpoolError, UnreachableError
from edge_client.ports import ConnectionLostError, Runtime, Transport
from edge_client.session_events import Loss
from edge_client.spool import Spool
from hushsum.entropy import Entropy
from hushsum.errors import PlanError
from hushsum.plan import Plan, plan_id_of


async def fetch_plan(transport: Transport, runtime: Runtime, config: Config, entropy: Entropy) -> Plan:
    """The plan that the service collects, tried for ``first_contact_s`` seconds.

    Raises:
        UnreachableError: Nobody answered in this time.
        SessionRefusedError: The service wants no session with this client, or its plan is not what it says.
        PlanError: This version cannot read the plan.
    """
    backoff = BackOff(config.backoff_first_s, config.backoff_longest_s, entropy)
    deadline = runtime.monotonic() + config.first_contact_s
    while True:
        loss = await _attempt(transport)
        if isinstance(loss, bytes):
            return await runtime.blocking(read_plan, loss)
        if loss.refusal is not None and not loss.refusal.retry:
            raise SessionRefusedError(f"the service wants no session with this client: {loss.detail}")
        wait_s = backoff.next_s()
        if runtime.monotonic() + wait_s >= deadline:
            raise UnreachableError(
                f"no service answered within {config.first_contact_s:g} s, and this spool holds no plan yet, so that "
                f"nothing can be added; the last attempt ended with: {loss.detail}"
            )
        await runtime.sleep(wait_s)


async def _attempt(transport: Transport) -> bytes | Loss:
    connection = transport.connect()
    try:
        welcome = await connection.greet(b"")
        data = await connection.fetch_plan(welcome.plan_id)
    except ConnectionLostError as error:
        return error.loss
    finally:
        await connection.close()
    if plan_id_of(data) != welcome.plan_id:
        came = plan_id_of(data).hex()[:12]
        raise SessionRefusedError(f"the service collects plan {welcome.plan_id.hex()[:12]} and sent plan {came} for it")
    return data


def stored_plan(spool: Spool) -> Plan | None:
    """The plan that a spool belongs to; None before its first contact.

    Raises:
        SpoolError: This version cannot read it.
    """
    data = spool.plan
    try:
        return None if data is None else read_plan(data)
    except PlanError as error:
        raise SpoolError(f"spool: it holds a plan that this version cannot read: {error}") from error


@lru_cache(maxsize=8)
def read_plan(data: bytes) -> Plan:
    """The plan of canonical bytes; the clients of one process share it, and what it has computed.

    Raises:
        PlanError: These are not the canonical bytes of a plan of this version.
    """
    return Plan.from_bytes(data)
