"""All that the releaser reaches the world by."""

from dataclasses import dataclass

from aggregator.ports import Folds, Log, Observer, Receipts, Runtime, Store, Tracer
from aggregator.watching.tracing import NO_TRACES
from hushsum.entropy import Entropy


@dataclass(frozen=True)
class ReleaserPorts:
    """Log, store and the rest; the tracer is told of seals and outcomes."""

    log: Log
    store: Store
    receipts: Receipts
    folds: Folds
    entropy: Entropy
    runtime: Runtime
    observer: Observer
    tracer: Tracer = NO_TRACES
