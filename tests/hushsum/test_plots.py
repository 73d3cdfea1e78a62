"""Figures of a release: what is drawn is what the release answers."""

import pickle
from io import BytesIO
from pathlib import Path

import matplotlib.image
import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, StepPatch

import hushsum as hs
from hushsum import panels, plots
from hushsum.errors import PlanError
from hushsum.statistics import Statistics
from tests.plans import classed_plan, model_plan, set_plan, small_plan

Floats = npt.NDArray[np.float64]


@pytest.fixture
def release(repeatable_noise: None) -> hs.Release:
    """Records at (2, 8), of a plan of named columns."""
    sketch = hs.Sketch(small_plan(record={"names": ["width", "depth"], "units": ["mm", "m"]}, sketch={"rows": 200}))
    sketch.add(np.tile([2.0, 8.0], (2000, 1)))
    return hs.release(sketch)


def truth(points: Floats) -> Floats:
    """A stand-in for exact densities, up to 3."""
    return np.asarray(points[:, 0] * 0.3, np.float64)


def test_the_densest_view_goes_through_the_densest_place(release: hs.Release) -> None:
    view = panels.densest_view(release)
    assert view.columns == (0, 1)
    assert np.abs(np.array(view.held) - [2, 8]).max() < 1.5  # a bandwidth is 2.5


@pytest.mark.parametrize("columns", ((0, 0), (2,), (-1, 0), ()))
def test_columns_that_are_not_there_are_refused(release: hs.Release, columns: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="columns"):
        panels.densest_view(release, columns)


def test_the_heat_maps_share_their_scale_and_show_exact_and_released(release: hs.Release) -> None:
    view = panels.View((0, 1), (2.0, 8.0))
    figure = plots.density_figure(release, exact=truth, view=view)
    (left, right), line = figure.axes[:2], figure.axes[-1]
    exact, released = left.images[0], right.images[0]
    assert exact.get_clim() == released.get_clim()
    values = np.asarray(released.get_array())
    low, high = released.get_clim()
    assert low <= values.min() < values.max() <= 3 == high
    side = len(values)
    corner = release.density(np.array([[0.0, 10.0]])).value[0]  # the upper left one: the least x, the greatest y
    assert values[side - 1, 0] == corner
    np.testing.assert_allclose(np.asarray(exact.get_array())[0], np.linspace(0, 3, side))
    assert {exact.origin, released.origin} == {"lower"}  # as on any map, y grows upwards
    assert left.get_xlabel() == "width (mm)"
    assert right.get_ylabel() == "depth (m)"
    legend = line.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["95 % interval", "released (ε = 1)", "exact"]


def test_the_line_shows_the_release_and_its_band(release: hs.Release) -> None:
    figure = plots.density_figure(release, exact=truth, view=panels.View((1, 0), (2.0, 8.0)))
    axis = figure.axes[-1]
    along, drawn = (np.asarray(part) for part in axis.lines[0].get_data())
    points = np.column_stack([np.full(len(along), 2.0), along])
    answer = release.density(points)
    assert drawn.tolist() == answer.value.tolist()
    band = np.asarray(axis.collections[0].get_paths()[0].vertices)
    assert band[:, 1].min() == answer.interval(0.95).low.min()
    assert band[:, 1].max() == answer.interval(0.95).high.max()
    assert axis.get_title() == "along the dashed line: width = 2"


def test_the_exact_density_is_asked_at_as_many_points_as_is_said(release: hs.Release) -> None:
    asked: list[int] = []

    def count(points: Floats) -> Floats:
        asked.append(len(points))
        return truth(points)

    view = panels.View((0, 1), (2.0, 8.0))
    plots.density_figure(release, exact=count, view=view)
    assert sum(asked) == panels.points_drawn(view)


def test_a_colour_scale_says_whether_it_is_linear(release: hs.Release) -> None:
    labels = {axis.get_ylabel() for axis in plots.density_figure(release).axes}
    assert any(label.endswith("\nsquare-root colour scale") for label in labels)
    assert "density\nlinear colour scale" in labels


def test_a_plan_of_one_column_has_a_line_alone(tmp_path: Path) -> None:
    sketch = hs.Sketch(small_plan(record={"dim": 1, "lower": [0], "upper": [10]}))
    sketch.add(np.full((100, 1), 4.0))
    figure = plots.density_figure(hs.release(sketch))
    assert len(figure.axes) == 1
    assert figure.axes[0].get_xlabel() == "x0"
    figure.savefig(tmp_path / "line.png")
    assert (tmp_path / "line.png").read_bytes().startswith(b"\x89PNG")


def test_a_release_of_sets_or_of_models_is_not_drawn() -> None:
    view = panels.View((0, 1), (0.0, 0.0, 0.0))
    for plan, expected in ((set_plan(), r"record.kind: got 'set'"), (model_plan(), r"sketch.family: got 'paired'")):
        release = hs.release(hs.Sketch(plan))
        with pytest.raises(PlanError, match=expected):
            panels.densest_view(release)
        with pytest.raises(PlanError, match=expected):
            plots.density_figure(release, view=view)


def test_the_title_says_what_is_promised_and_for_when() -> None:
    from hushsum.entropy import OsEntropy
    from hushsum.releases import draw

    sketch = hs.Sketch(small_plan())
    window = 498_691
    release = draw(sketch, kind="tumbling", window=window, entropy=OsEntropy(), accounted=True)
    title = plots.density_figure(release).get_suptitle()
    assert "test" in title
    assert "ε = 1 per record" in title
    assert "window 2026-11-21 19:00 to 20:00 UTC" in title
    with_delta = hs.release(hs.Sketch(small_plan(privacy={"delta": "0.000001", "total_delta": "0.000001"})))
    assert "ε = 1, δ = 1e-6 per record" in plots.density_figure(with_delta).get_suptitle()


@pytest.fixture
def changed(repeatable_noise: None) -> hs.Release:
    """A quarter of the records of `release` is elsewhere."""
    sketch = hs.Sketch(small_plan(record={"names": ["width", "depth"], "units": ["mm", "m"]}, sketch={"rows": 200}))
    sketch.add(np.tile([2.0, 8.0], (1500, 1)))
    sketch.add(np.tile([8.0, 2.0], (500, 1)))
    return hs.release(sketch)


def test_the_difference_of_two_releases_is_drawn_with_the_places_that_differ(
    release: hs.Release, changed: hs.Release
) -> None:
    compared = changed.compare(release)
    view = panels.View((0, 1), (2.0, 8.0))
    figure = plots.difference_figure(compared, view=view)
    plane, line = figure.axes[0], figure.axes[-1]
    values = np.asarray(plane.images[0].get_array())
    least, most = plane.images[0].get_clim()
    assert least == -most == -np.abs(values).max()
    assert values[-1, 0] == compared.density(np.array([[0.0, 10.0]])).value[0]
    (outline,) = plane.collections
    x, y = np.concatenate([path.vertices for path in outline.get_paths()]).T
    assert {bool(np.any((x > 5) & (y < 5))), bool(np.any((x < 5) & (y > 5)))} == {True}  # at both places
    assert "outlined: more than noise explains" in plane.get_xlabel()
    along, drawn = (np.asarray(part) for part in line.lines[0].get_data())
    points = np.column_stack([along, np.full(len(along), 8.0)])
    assert drawn.tolist() == compared.density(points).value.tolist()
    marked = np.asarray(line.lines[1].get_xdata())
    assert marked.tolist() == along[np.sort(compared.regions(points).at)].tolist()
    title = figure.get_suptitle()
    assert title.startswith("test (ε = 1)\nminus test (ε = 1)\nboth are samples of one population: p = ")
    assert float(title.rpartition("p = ")[2]) < 1e-3


def test_a_view_of_a_difference_is_not_chosen_by_what_differs(release: hs.Release, changed: hs.Release) -> None:
    view = panels.common_view(changed.compare(release))
    assert view == panels.common_view(release.compare(changed))
    assert np.abs(np.array(view.held) - [2, 8]).max() < 1.5
    assert not view.is_highest
    assert panels.densest_view(release).is_highest


def test_figures_say_what_is_not_known(repeatable_noise: None) -> None:
    one_row = hs.release(hs.Sketch(small_plan(sketch={"rows": 1})).add(np.full((500, 2), 5.0)))
    figure = one_row.plot("density")
    assert not figure.axes[1].axison
    legend = figure.axes[-1].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "released (ε = 1), no standard error: the sketch has one row"
    ]
    empty = hs.release(hs.Sketch(small_plan(sketch={"rows": 50})))
    plane = empty.plot("density").axes[0]
    assert not plane.collections  # contours of noise
    assert "chosen for its high answer, which is likely too high" in empty.plot("density").axes[-1].get_title()
    space = small_plan(record={"dim": 3, "lower": [0] * 3, "upper": [10] * 3}, sketch={"rows": 50})
    maps = [axis for axis in hs.release(hs.Sketch(space)).plot("pairs").axes if axis.images]
    blank = [np.ma.getmaskarray(np.ma.masked_invalid(np.ma.asarray(axis.images[0].get_array()))) for axis in maps]
    assert np.mean(blank) > 0.5


def test_the_difference_of_a_release_from_itself_has_no_outline(release: hs.Release) -> None:
    figure = plots.difference_figure(release.compare(release), title="nothing")
    assert not figure.axes[0].collections
    assert len(figure.axes[-1].lines) == 2  # the difference, and 0
    assert figure.get_suptitle() == "nothing\nboth are samples of one population: p = 1"


def test_a_release_is_drawn_by_what_its_plan_is(release: hs.Release) -> None:
    assert panels.default_kind(release) == "density"
    space = small_plan(record={"dim": 3, "lower": [0, 0, 0], "upper": [10, 10, 10]})
    cells = {"family": "partition", "bandwidth": 1, "rows": 1, "buckets": 16, "seed": 3}
    line = {"dim": 1, "lower": [0], "upper": [10]}
    for plan, kind in (
        (space, "pairs"),
        (classed_plan("a", "b"), "classes"),
        (plan_of(line, cells), "cdf"),
        (plan_of(line, {**cells, "buckets": 4, "rows": 5}), "density"),  # cells collide
    ):
        made = hs.release(hs.Sketch(plan))
        assert panels.default_kind(made) == kind
        assert made.plot().axes


def plan_of(record: dict[str, object], sketch: dict[str, object]) -> hs.Plan:
    return hs.Plan(name="drawn", record=record, sketch=sketch, privacy={"epsilon": 1, "total_epsilon": 1})


def test_pairs_share_their_scale_and_show_slices_through_the_densest_place(repeatable_noise: None) -> None:
    sketch = hs.Sketch(small_plan(record={"dim": 3, "lower": [0] * 3, "upper": [10] * 3}, sketch={"rows": 100}))
    release = hs.release(sketch.add(np.tile([2.0, 8.0, 5.0], (2000, 1))))
    figure = release.plot()
    held = panels.densest_view(release, (0,)).held
    maps = [axis for axis in figure.axes if axis.images]
    assert len(maps) == 3
    assert len({axis.images[0].get_clim() for axis in maps}) == 1
    assert {(axis.get_xlabel(), axis.get_ylabel()) for axis in maps} == {("", "x1"), ("x0", "x2"), ("x1", "")}
    values = np.asarray(maps[0].images[0].get_array())
    corner = np.array([[0.0, 10.0, held[2]]])
    assert values[-1, 0] == release.density(corner).value[0]
    few = release.plot("pairs", columns=[2, 0])
    assert [axis.get_xlabel() for axis in few.axes if axis.images] == ["x2"]
    for wrong in ([0, 0], [3], [], ["depth"]):
        with pytest.raises(ValueError, match="columns: got"):
            release.plot("pairs", columns=wrong)
    with pytest.raises(ValueError, match="kind: got 'pie'"):
        release.plot("pie")


def test_classes_are_drawn_with_their_counts_and_shares(repeatable_noise: None) -> None:
    labels = [f"c{number}" for number in range(10)]
    sketch = hs.Sketch(classed_plan(*labels, sketch={"rows": 100}))
    for number, label in enumerate(labels):
        sketch.add(np.tile([2.0, 8.0], (3000 - 200 * number, 1)), labels=[label] * (3000 - 200 * number))
    release = hs.release(sketch)
    figure = release.plot()
    bars, shares = figure.axes
    names = [text.get_text() for text in bars.get_xticklabels()]
    assert names == [*labels[:7], "3 others"]
    heights = [bar.get_height() for bar in bars.patches if isinstance(bar, Rectangle)]
    assert heights[:7] == [release.count_of(label) for label in labels[:7]]
    assert bars.get_title() == "records of each class, with simultaneous 95 % intervals"
    assert sum(heights) == pytest.approx(sum(map(release.count_of, labels)))
    first = shares.lines[0]
    along, drawn = (np.asarray(part) for part in first.get_data())
    held = panels.densest_view(release, (0,)).held
    at = np.column_stack([along, np.full(len(along), held[1])])
    share = release.kernel_sum(at, label="c0").value / release.kernel_sum(at).value
    seen = ~np.isnan(drawn)
    assert seen.any()
    assert drawn[seen].tolist() == share[seen].tolist()
    peak = int(np.argmin(np.abs(along - 2)))
    assert drawn[peak] == pytest.approx(3000 / 21_000, abs=0.05)


def test_a_distribution_is_drawn_as_the_statistics_have_it(repeatable_noise: None) -> None:
    cells = {"family": "partition", "bandwidth": 1, "rows": 1, "buckets": 16, "seed": 3}
    plan = plan_of({"dim": 1, "lower": [0], "upper": [10], "names": ["age"], "units": ["years"]}, cells)
    release = hs.release(hs.Sketch(plan).add(np.full((500, 1), 4.0)))
    top, bottom = release.plot("cdf").axes
    statistics = Statistics(release)
    line = top.patches[-1]
    assert isinstance(line, StepPatch)
    assert line.get_data()[0].tolist() == statistics.histogram().counts.value.tolist()
    below = np.asarray(bottom.lines[0].get_ydata())
    assert below.tolist() == statistics.cdf().monotone().tolist()
    assert bottom.get_xlabel() == "age (years)"


def test_a_dark_figure_has_light_lines_and_leaves_no_trace(release: hs.Release) -> None:
    from matplotlib import rcParams

    before = dict(rcParams)
    figure = release.plot(dark=True)
    assert figure.get_facecolor()[:3] == (0.0, 0.0, 0.0)
    assert dict(rcParams) == before
    assert release.plot().get_facecolor()[:3] == (1.0, 1.0, 1.0)


def test_a_notebook_shows_a_figure_as_a_picture_without_pyplot(release: hs.Release) -> None:
    """IPython shows the value of a cell by this method, and prints matplotlib's own figures as text without pyplot."""
    picture = release.plot()._repr_png_()  # type: ignore[attr-defined]  # of IPython's protocol, not matplotlib's
    assert matplotlib.image.imread(BytesIO(picture)).std() > 0.05  # something is drawn


def test_a_figure_is_pickled_as_one_of_matplotlib(release: hs.Release) -> None:
    figure = release.plot()
    again = pickle.loads(pickle.dumps(figure))
    assert type(again) is Figure
    assert [axis.get_title() for axis in again.axes] == [axis.get_title() for axis in figure.axes]


def test_half_widths_of_intervals_are_drawn_on_a_scale_from_zero(release: hs.Release) -> None:
    """From the least to the most, widths that are equal but for rounding would look different."""
    for figure in (release.plot(), plots.difference_figure(release.compare(release))):
        (drawn,) = figure.axes[1].images
        assert drawn.norm.vmin == 0.0
        assert drawn.norm.vmax == np.max(np.asarray(drawn.get_array())) > 0.0
