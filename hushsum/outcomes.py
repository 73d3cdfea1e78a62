"""What a sealed window comes to: released or withheld, decided once (docs/explanation/proofs/withholding.md).

This is the one place that looks at the number of clients, and whether a window is released is the one thing that it
tells of it. In mode ``central`` a noised number decides, in every window, the empty ones too: that costs the plan's
``min_clients_share`` of ε whatever comes of it. In mode ``local`` it is no secret who takes part, and the exact number
decides.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum import canonical
from hushsum.entropy import Entropy
from hushsum.errors import GuaranteeError
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum.privacy.spending import refuse_drawn_by_clients
from hushsum.releases import Release, draw, of_reports, of_silos
from hushsum.sketch import Sketch

WITHHELD_FORMAT: Final = 1

Counters = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Withheld:
    """The outcome of a window that had too few clients: final, and nothing more is ever told of the window.

    Attributes:
        plan_id: 32 bytes.
        kind: ``tumbling``.
        window: Index of the window.
    """

    plan_id: bytes
    kind: str
    window: int

    def to_bytes(self) -> bytes:
        """Canonical bytes of what is public alone: of one window they are the same whoever took part."""
        fields: dict[str, object] = {
            "format": WITHHELD_FORMAT,
            "outcome": "withheld",
            "plan_id": self.plan_id.hex(),
            "kind": self.kind,
            "window": self.window,
        }
        return canonical.encode(fields)


def decide(sketch: Sketch, *, kind: str, window: int, clients: int, entropy: Entropy) -> Release | Withheld:
    """The outcome of a sealed window, drawn here: to be stored with its charge before anybody sees it.

    Args:
        sketch: The exact sum of the window.
        kind: ``tumbling``.
        window: Its index.
        clients: The exact number of clients that are in it; looked at where the plan has ``min_clients`` alone.
        entropy: Of all noise: first of the number of clients where it has some, then, once that is enough, of the
            counters.

    Raises:
        GuaranteeError: The plan is of mode ``secure`` or ``local``: no window of it is drawn here.
    """
    refuse_drawn_by_clients(sketch.plan)
    if _enough(sketch.plan, clients, entropy):
        return draw(sketch, kind=kind, window=window, entropy=entropy, accounted=True)
    return Withheld(sketch.plan.id, kind, window)


def decide_local(
    plan: Plan, counters: Counters, counts: Counters, *, window: int, submissions: int | None
) -> Release | Withheld:
    """The outcome of a sealed window of mode ``local``: nothing is drawn, for its noise is in what devices sent.

    An exact number decides. Under ``silo`` it is that of clients, each of which submits in every window, and under
    ``report`` that of reports, which replacing a record by another leaves as it is: neither is a secret there.

    Args:
        plan: Of mode ``local``.
        counters: As :func:`hushsum.releases.of_silos` and :func:`hushsum.releases.of_reports` take them.
        counts: Theirs.
        window: Its index.
        submissions: How many clients are in it; None for reports. Of those of a plan with a shuffler, whoever sums
            them up takes none that did not come through it.

    Raises:
        GuaranteeError: The plan is of another mode.
        ReleaseError: Counts that the plan cannot have.
        MergeError: Arrays of another shape or type.
    """
    local, least = plan.privacy.local, plan.window.min_clients
    if local is not None and local.reports:
        shuffled = local.shuffle_min > 0
        release = of_reports(plan, counters, counts, window=window, shuffled=shuffled)
        came, least = int(counts[0]), plan.window.min_reports
    else:
        if submissions is None:
            raise GuaranteeError(
                f"plan {plan.name!r}: the number of clients is required to decide whether a window is released"
            )
        release = of_silos(plan, counters, counts, window=window, submissions=submissions)
        came = submissions
    return release if came >= least else Withheld(plan.id, TUMBLING, window)


def _enough(plan: Plan, clients: int, entropy: Entropy) -> bool:
    """Whether the clients reach the plan's ``min_clients``: by a noised number."""
    assert clients >= 0
    least = plan.window.min_clients
    if least == 0:
        return True
    noise = plan.privacy.mechanism.clients_noise()
    assert noise is not None, "a plan of mode 'central' with min_clients has it"
    return clients + int(noise.sample(1, entropy)[0]) >= least
