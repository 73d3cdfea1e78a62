"""Whether the newest released window differs from the one before: a p-value for the metrics page.

It is computed from published releases alone, at no cost in privacy. One test is made after each release, so that small
values come by chance now and then: `hushsum drift` tests a whole series at a stated rate of false alarms.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from aggregator.logs import journal
from aggregator.release.catalog import NotFoundError, ReleaseCatalog
from aggregator.runtime import Runtime
from hushsum.errors import PlanError
from hushsum.releases import Release
from hushsum.releases.series import Series
from hushsum_proto.messages import ReleaseInfo

_RELEASES: Final = 3  # of two windows, where releases are cumulative

_journal = journal("drift")


class DriftMonitor:
    """Follows the catalog, and compares the two newest released windows.

    Args:
        on_tested: Called with the p-value of the test that both are samples of one population.
    """

    def __init__(self, catalog: ReleaseCatalog, runtime: Runtime, *, on_tested: Callable[[float], None]) -> None:
        self._catalog, self._runtime, self._on_tested = catalog, runtime, on_tested
        self._newest: deque[ReleaseInfo] = deque(maxlen=_RELEASES)
        self._untestable = False

    async def run(self) -> None:
        """Tests the newest releases, and again after each release; ends when the service stops."""
        listed = await self._catalog.releases(None)
        last = listed[-1].window if listed else None
        self._newest.clear()
        async for info in self._catalog.watch(None):
            if info.withheld or info.removed:
                continue
            self._newest.append(info)
            if (last is None or info.window >= last) and not self._untestable:
                await self._test()

    async def _test(self) -> None:
        try:
            files = [await self._catalog.release(info.kind, info.window) for info in self._newest]
            if (found := await self._runtime.blocking(p_value, files)) is not None:
                self._on_tested(found)
        except NotFoundError:
            pass  # removed meanwhile
        except (PlanError, ValueError) as error:  # no densities, or too few rows: so it is for every window
            self._untestable = True
            _journal.info("drift is not measured", why=str(error))


def p_value(files: list[bytes]) -> float | None:
    """Of the test that the last two windows are samples of one population; None where there are no two.

    Args:
        files: ``.hush`` files of one plan, in the order of their windows.

    Raises:
        PlanError: The plan's answers are no densities.
        ValueError: The sketch has too few rows.
    """
    windows = Series(Release.from_bytes(data) for data in files).consecutive()
    return windows[-1].compare(windows[-2]).p_value() if len(windows) > 1 else None
