"""A registry that may show everything as of the last whole minute: for plans whose times of arrival nobody keeps."""

import copy
from collections.abc import Iterable
from typing import Final, NoReturn

from prometheus_client import CollectorRegistry, Metric

STEP_MS: Final = 60_000

_SUFFIX: Final = " (as of the last whole minute)"


class SteppedRegistry(CollectorRegistry):
    """Shows what is so, until it is first held; from then on what was so when it was last held.

    Whoever reads it more often than it is held, or at other times, learns nothing more by that: a number that grew
    tells in which minute something came, and the size of a batch in no shorter time than that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: tuple[Metric, ...] | None = None

    def hold(self) -> None:
        """Shows this moment, until it is called again."""
        self._held = tuple(_kept(metric) for metric in super().collect())

    def collect(self) -> Iterable[Metric]:
        """Every metric, for a page; from any thread."""
        return super().collect() if self._held is None else iter(self._held)

    def restricted_registry(self, names: Iterable[str]) -> NoReturn:
        """A part of it would show what is so now: there is none."""
        raise NotImplementedError(f"a part of the page, {list(names)}")

    def get_sample_value(self, name: str, labels: dict[str, str] | None = None) -> float | None:
        """A value as it is now, for this process itself."""
        wanted = labels or {}
        samples = (sample for metric in super().collect() for sample in metric.samples)
        return next((sample.value for sample in samples if (sample.name, sample.labels) == (name, wanted)), None)


def _kept(metric: Metric) -> Metric:
    """A copy that says of when it is, without the times at which series began: those are when something came first."""
    kept = copy.copy(metric)
    kept.documentation = metric.documentation + _SUFFIX
    kept.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
    return kept


def until_step_s(now_ms: int) -> float:
    """Seconds until the next whole minute; a whole one at its beginning."""
    return (STEP_MS - now_ms % STEP_MS) / 1000
