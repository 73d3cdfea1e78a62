"""What a sealed window comes to, in the bytes that are stored and shown, whatever its plan's mode.

Pure: of what is sealed, and of the entropy that was fixed with the charge. Repeated, it gives the same bytes.
"""

from aggregator.fold.kinds import takes_reports
from aggregator.records import SealedWindow
from hushsum.entropy import Entropy
from hushsum.outcomes import Withheld, decide, decide_local
from hushsum.privacy.event import TUMBLING
from hushsum.privacy.guarantee import LOCAL, SECURE
from hushsum.releases import of_sums


def decided(sealed: SealedWindow, window: int, entropy: Entropy) -> tuple[bytes, bool]:
    """The outcome's bytes, and whether it is withheld.

    Args:
        sealed: What the folds have made of the window.
        window: Its index.
        entropy: Of all that is drawn here: nothing for a secure or local plan, whose clients have drawn the noise.
            Windows of a secure plan are never withheld, those of a local one by numbers that are public.
    """
    sketch = sealed.sketch
    if sketch.plan.privacy.mode == SECURE:
        cohorts, submissions = sealed.cohorts, sealed.clients
        release = of_sums(
            sketch.plan, sketch.counters, sketch.counts, window=window, cohorts=cohorts, submissions=submissions
        )
        return release.to_bytes(), False
    if sketch.plan.privacy.mode == LOCAL:
        clients = None if takes_reports(sketch.plan) else sealed.clients
        local = decide_local(sketch.plan, sketch.counters, sketch.counts, window=window, submissions=clients)
        return local.to_bytes(), isinstance(local, Withheld)
    outcome = decide(sketch, kind=TUMBLING, window=window, clients=sealed.clients, entropy=entropy)
    return outcome.to_bytes(), isinstance(outcome, Withheld)
