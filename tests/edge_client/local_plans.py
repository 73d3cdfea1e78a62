"""Plans of local mode whose devices keep little, and a spool's parts under them."""

from collections.abc import Mapping
from pathlib import Path

from edge_client.encoding import ReportEncoder
from edge_client.spool.changes import Result, StoredDelta
from edge_client.spool.spool import Spool
from edge_client.spool.transaction import DeviceBudget, ReportTransaction
from hushsum import Plan
from hushsum.entropy import OsEntropy
from tests.edge_client.spools import opened
from tests.plans import classed_plan, small_plan

WINDOW: Mapping[str, object] = {"length": "1h", "lateness": "20m"}


def silo_plan(**privacy: object) -> Plan:
    """A small plan of silos."""
    return small_plan(
        privacy={"mode": "local", "local": {"form": "silo"}, **privacy},
        sketch={"rows": 4, "buckets": 16},
        window=WINDOW,
    )


def report_plan(*classes: str, memoise: bool = False, **privacy: object) -> Plan:
    """A small plan of reports; with classes where they are named."""
    made = classed_plan if classes else small_plan
    return made(
        *classes,
        privacy={"mode": "local", "local": {"memoise": memoise}, **privacy},
        sketch={"rows": 4000, "buckets": 64},
        window=WINDOW,
    )


class ReportSpool:
    """A spool of reports, as a client opens it; ``anew`` as after a kill."""

    def __init__(self, path: Path, plan: Plan, bytes_max: int = 2**30) -> None:
        self.path, self.plan, self.bytes_max = path, plan, bytes_max
        self.spool: Spool
        self.budget: DeviceBudget
        self.open()

    def open(self) -> None:
        self.spool = opened(self.path, bytes_max=self.bytes_max)
        self.budget = self.spool.keep_budget(self.plan, ReportTransaction)
        local = self.plan.privacy.local
        assert local is not None
        self.secret = self.spool.keep_memo(OsEntropy()) if local.memoise else None
        self.encoder = ReportEncoder(self.plan, self.secret)

    def anew(self) -> None:
        self.spool.close()
        self.open()

    def result(self, records: object, window: int = 7, labels: object = None) -> Result:
        (result,) = self.spool.commit([self.encoder.encode(records, window, labels)])
        return result

    def add(self, records: object, window: int = 7, labels: object = None) -> tuple[StoredDelta, ...]:
        result = self.result(records, window, labels)
        assert isinstance(result, tuple), result
        return result


#: Reports of clients, each window of which costs 1 of a total of 3, as records of a client.
CLIENT_REPORTS = report_plan(memoise=True, unit="client", records_per_client=3, epsilon=1, total_epsilon=3)
#: Another plan of the same, whose population has another name.
NEW_REPORTS = report_plan(unit="client", records_per_client=2, epsilon=1, total_epsilon=3, population="another")
