"""What really leaves a device of mode local: the batches that its own code makes of records, and keeps in its spool."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from edge_client.batches import split
from edge_client.changes import NO_ID
from edge_client.reports import Randomising, reports_max
from edge_client.spool import Spool
from hushsum.entropy import Entropy, OsEntropy
from hushsum.local.batches import unpack
from hushsum.plan import Plan
from simulator.audits.cases import Integers, column, plan_of
from simulator.audits.report import Check

_CLIENT: Final[dict[str, Any]] = {"unit": "client", "records_per_client": 2}
_USUAL, _UNUSABLE = 5.0, float("nan")
#: What one device adds to one window, call by call.
_CALLS: Final[Sequence[Sequence[Sequence[float]]]] = (
    ([_USUAL], [_USUAL], [_USUAL]),
    ([_USUAL, _UNUSABLE], [_USUAL]),
    ([_UNUSABLE], [_UNUSABLE], [_UNUSABLE]),
    ([_USUAL, _USUAL, _USUAL], [_USUAL]),
)
_BYTES_MAX: Final = 2**20


def sent(plan: Plan, records: Any, labels: object, entropy: Entropy) -> Integers:
    """(n,) the reports of these records, in the order in which a device sends them, which is not theirs.

    Raises:
        OSError: ``entropy`` gave fewer bytes than it was asked for.
    """
    addition = split(plan, records, 0, labels, Randomising(plan, entropy=entropy)).addition
    found = [unpack(unbound.pack(NO_ID), plan).reports for unbound in addition.deltas]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def streams(plan: Plan, reports: int) -> int:
    """How many words a device reads beside those of its reports: one for each batch."""
    return -(-reports // reports_max(plan))


def bound_checks() -> Iterator[Check]:
    """No client sends more reports of a window than its plan counts it with, however many records it adds."""
    for memoise in (False, True):
        local = {"randomiser": "k-rr", "memoise": memoise}
        yield bound_check(plan_of(mode="local", local=local, sketch={"buckets": 4}, **_CLIENT))


def bound_check(plan: Plan) -> Check:
    """The same of one plan of unit client, whose devices memoise or not: by what a spool holds of each window."""
    most, local = plan.privacy.records_per_client, plan.privacy.local
    assert most is not None, "a plan of clients"
    assert local is not None, "a plan of reports"
    with TemporaryDirectory() as folder:
        spool = Spool(Path(folder) / "spool.db", client_id=None, entropy=OsEntropy(), bytes_max=_BYTES_MAX)
        spool.keep_rounds()
        spool.keep_books(plan)
        randomising = Randomising(plan, spool.keep_memo(OsEntropy()) if local.memoise else None)
        for window, calls in enumerate(_CALLS):
            for values in calls:
                spool.commit([split(plan, column(*values), window, None, randomising).addition])
        held = [unpack(bound.data, plan) for bound in spool.load(0, 100, _BYTES_MAX)]
        spool.close()
    reports: Counter[int] = Counter()
    for batch in held:
        reports[batch.window] += len(batch.reports)
    found = [reports[window] for window in range(len(_CALLS))]
    what = f"a device that {'memoises' if local.memoise else 'draws anew'} sends at most its {most} reports of a window"
    return Check(what, max(found) == most, ", ".join(map(str, found)))
