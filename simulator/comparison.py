"""A release beside the truth: the sketch of the same records in bulk, the queries, the figure."""

from typing import Final

from hushsum import plots
from hushsum.releases import Release
from hushsum.sketch import Sketch
from simulator.exact import ExactSums, clip
from simulator.material import Material, Settings
from simulator.progress import Progress
from simulator.records import Floats

# Of china.jpg: the hazy sky and the roofs' white show as two peaks in the plane blue = 230.
_PHOTOGRAPH_VIEW: Final = plots.View((0, 1), (200.0, 215.0, 230.0))


def in_bulk(material: Material) -> Sketch:
    """The sketch of the same records, without clients, network or log."""
    bulk = Sketch(material.plan)
    clients = None
    if material.plan.privacy.unit == "client":
        clients = [share.client_id for share in material.shares for _ in range(share.records)]
    bulk.add(material.counted, clients=clients, labels=material.labels)
    return bulk


def asked(material: Material, truth: ExactSums, progress: Progress) -> tuple[Floats, Floats]:
    """Held-out records (m, d) to compare at, and the exact sums there: (m,)."""
    wanted = len(material.queries)
    queries = clip(material.plan, material.queries[: truth.affordable(wanted)])
    if len(queries) < wanted:
        progress.warn(f"{len(queries)} of {wanted} queries are compared: the exact sums of more would take too long")
    return queries, truth.at(queries, progress.bar("queries compared", len(queries)))


def draw(settings: Settings, release: Release, truth: ExactSums, progress: Progress) -> None:
    """Writes density.png: the release beside the exact density, where that does not take too long."""
    view = _PHOTOGRAPH_VIEW if settings.data is None else plots.densest_view(release)
    points = plots.points_drawn(view)
    if truth.affordable(points) < points:
        progress.warn("density.png shows the release alone: the exact density of so many records would take too long")
        plots.density_figure(release, view=view).savefig(settings.out / "density.png")
        return
    bar = progress.bar("points of density.png", points)
    done = 0

    def density(at: Floats) -> Floats:
        nonlocal done
        sums = truth.at(at, lambda some: bar(done + some))
        done += len(at)
        return sums / truth.records

    plots.density_figure(release, exact=density, view=view).savefig(settings.out / "density.png")
