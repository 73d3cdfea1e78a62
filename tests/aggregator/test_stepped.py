"""Of a plan of reports metrics say in which minute something came, and never when."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from prometheus_client import generate_latest

from aggregator.config import Config
from aggregator.fold.verdicts import Verdict
from aggregator.ports import Peer
from aggregator.watching.metrics import Metrics
from aggregator.watching.stepped import SteppedRegistry, until_step_s
from aggregator.watching.vitals import Vitals
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Status
from tests.aggregator.local_clients import report_plan
from tests.doubles import ManualRuntime
from tests.plans import small_plan
