"""A plan is validated key by key, has one encoding, and its id names all of it."""

import hashlib
import json
import warnings
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushsum import NotBuiltError, Plan, PlanError, PlanWarning, canonical
from hushsum.query import noise_std_error
from tests.plans import TABLES, client_plan, small_plan, tables

TOML = """
name = "pixel-colours"
[record]
dim = 3
lower = [0, 0, 0]
upper = [255, 255, 255]
[sketch]
family = "hashed"
kernel = "euclidean"
bandwidth = 5.0
rows = 1000
buckets = 1024
seed = 7
[privacy]
epsilon = 1.0
total_epsilon = 30.0
"""


def test_a_plan_file_gives_the_parameters_of_its_mechanism() -> None:
    plan = Plan.from_toml(TOML)
    assert plan.privacy.mechanism.scale == Fraction(1053)
    assert plan.privacy.mechanism.count_scale == 53
    assert plan.guarantee.epsilon == 1
    assert plan.counters_shape == (1, 1000, 1024)


def test_the_id_is_the_hash_of_the_canonical_bytes() -> None:
    plan = Plan.from_toml(TOML)
    assert plan.id == hashlib.sha256(plan.to_bytes()).digest()


def test_made_bytes_load_to_the_same_plan() -> None:
    plan = Plan.from_toml(TOML)
    assert Plan.from_bytes(plan.to_bytes()) == plan
    assert Plan.from_bytes(plan.to_bytes()).id == plan.id


def test_all_keys_of_the_family_are_written_defaults_too() -> None:
    fields = json.loads(Plan.from_toml(TOML).to_bytes())
    assert fields["sketch"] == {
        "family": "hashed", "kernel": "euclidean", "bandwidth": "5", "power": 1, "rows": 1000, "buckets": 1024,
        "draws": "independent", "seed": 7,
    }  # fmt: skip
    assert fields["window"] == {
        "length": "1h", "epoch": "1970-01-01T00:00:00Z", "lateness": "5m", "time": "event", "release": "tumbling",
        "min_clients": 0,
    }  # fmt: skip
    assert fields["privacy"]["mechanism"] == {"name": "discrete-laplace", "scale": "1053", "count_scale": 53}


@pytest.mark.parametrize("spelling", ["5", "5.0", "5.00", "5e0"])
def test_the_spelling_of_a_number_does_not_change_the_id(spelling: str) -> None:
    assert Plan.from_toml(TOML.replace("bandwidth = 5.0", f"bandwidth = {spelling}")).id == Plan.from_toml(TOML).id


def test_the_spelling_of_a_duration_does_not_change_the_id() -> None:
    spelled = small_plan(window={"length": "3600s", "lateness": "300000ms"})
    assert spelled.id == small_plan().id


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("sketch", "bandwidth", 2.6), ("sketch", "seed", 4), ("sketch", "rows", 21), ("sketch", "power", 2),
        ("privacy", "epsilon", 0.5), ("privacy", "total_epsilon", 99), ("privacy", "population", "p"),
        ("window", "length", "2h"), ("window", "lateness", "6m"), ("window", "epoch", "1970-01-02T00:00:00Z"),
        ("record", "names", ["a", "b"]), ("record", "units", ["m", "s"]), ("record", "upper", [10, 11]),
        ("record", "classes", ["a", "b"]),
    ],
)  # fmt: skip
def test_every_key_changes_the_id(table: str, key: str, value: object) -> None:
    assert small_plan(**{table: {key: value}}).id != small_plan().id


@pytest.mark.parametrize(
    ("table", "key", "value", "expected"),
    [
        ("record", "dim", 0, "an integer from 1"),
        ("record", "dim", 2.0, "an integer from 1"),
        ("record", "dim", True, "an integer from 1"),
        ("record", "lower", [0], "a list of 2 numbers"),
        ("record", "lower", [0, float("nan")], "not finite"),
        ("record", "upper", [10, 0], "above record.lower[1] = 0"),
        ("record", "universe", 10, "a known key"),
        ("record", "names", ["a"], "a list of 0 or 2 strings"),
        ("record", "names", ["a", "a"], "all different"),
        ("record", "kind", "graph", "one of 'vector', 'set'"),
        ("record", "kind", "set", "a known key"),
        ("record", "classes", ["a"], "[] (no classes), or 2 to 1024 labels"),
        ("record", "classes", [str(n) for n in range(1025)], "[] (no classes), or 2 to 1024 labels"),
        ("record", "classes", ["a", "a"], "all different"),
        ("record", "classes", ["a", ""], "at least one character"),
        ("record", "classes", ["a", 2], "a list of strings"),
        ("sketch", "family", "hash", "one of 'hashed'"),
        ("sketch", "bandwidth", 0, "above 0"),
        ("sketch", "bandwidth", -0.0, "negative zero"),
        ("sketch", "bandwidth", "five", "not a decimal number"),
        ("sketch", "bandwith", 5, "did you mean 'bandwidth'?"),
        ("sketch", "rows", 0, "an integer from 1"),
        ("sketch", "order", 8, "a known key"),
        ("sketch", "seed", -1, "an integer from 0"),
        ("privacy", "epsilon", 0, "a number above 0"),
        ("privacy", "epsilon", ..., "is missing, expected a number above 0"),
        ("privacy", "total_epsilon", ..., "is missing"),
        ("privacy", "total_epsilon", 0.5, "expected at least 1, the charge of the first release"),
        ("privacy", "total_delta", 1, "from 0 to below 1"),
        ("privacy", "participation", "secret", "one of 'protected'"),
        ("privacy", "participation", "public", "'public' was removed"),
        ("privacy", "unit", "device", "one of 'record', 'client'"),
        ("privacy", "records_per_client", 3, "only unit 'client'"),
        ("privacy", "min_clients_share", 0.05, "with window.min_clients above 0"),
        ("window", "length", "0s", "a duration"),
        ("window", "length", "1 hour", "a duration"),
        ("window", "epoch", "1970-01-01T00:00:00+01:00", "a UTC time"),
        ("window", "epoch", "1969-12-31T00:00:00Z", "from 1970 on"),
        ("window", "width", 10, "a known key"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_key_and_what_was_expected(
    table: str, key: str, value: object, expected: str
) -> None:
    with pytest.raises(PlanError) as caught:
        small_plan(**{table: {key: value}})
    assert caught.value.key.startswith((f"{table}.{key}", f"{table}.dim"))  # dim: sets have no dimension
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("table", "key", "value", "expected"),
    [
        ("window", "time", "banana", "one of 'event'"), ("window", "release", 7, "one of 'tumbling'"),
        ("window", "min_clients", -5, "an integer from 0"), ("window", "min_clients", 0.0, "an integer from 0"),
        ("privacy", "delta", -1, "from 0 to below 1"), ("record", "lower", [0, "x"], "record.lower[1]"),
        ("record", "classes", "ab", "a list of strings"), ("privacy", "population", " ", "visible characters"),
        ("privacy", "population", "staff\u200b", "visible characters"), ("sketch", "family", ["hashed"], "one of"),
        ("privacy", "population", "p" * 129, "visible characters"), ("privacy", "epsilon", 10**900, "64 characters"),
        ("sketch", "bandwidth", Decimal("sNaN"), "not finite"), ("record", "names", ["a\n", "b"], "visible characters"),
    ],
)  # fmt: skip
def test_nonsense_is_not_called_unbuilt(table: str, key: str, value: object, expected: str) -> None:
    with pytest.raises(PlanError) as caught:
        small_plan(**{table: {key: value}})
    assert not isinstance(caught.value, NotBuiltError)
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 400


def test_two_columns_may_be_measured_in_the_same_unit() -> None:
    assert small_plan(record={"units": ["m", "m"]}).collection.units == ("m", "m")


def test_numpys_integers_are_integers() -> None:
    assert small_plan(sketch={"rows": np.int64(20)}).id == small_plan().id


@pytest.mark.parametrize(
    "text",
    [
        "x = 1e1000000000000000000\n", f"x = {'9' * 5000}\n", f"x = 0x{'f' * 20_000}\n",
        f"x = {'[' * 3000}\n", "x =\n", "\n",
    ],
    ids=["exponent", "digits", "hex", "nesting", "syntax", "empty"],
)  # fmt: skip
def test_toml_of_any_kind_gives_a_plan_or_a_plan_error(text: str) -> None:
    with pytest.raises(PlanError):
        Plan.from_toml(text)


def test_a_file_that_is_no_utf8_is_a_plan_error(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_bytes(b'name = "\xff"\n')
    with pytest.raises(PlanError):
        Plan.from_toml(tmp_path / "plan.toml")


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(PlanError, match="a known key"):
        Plan.from_fields({**tables(), "privvacy": {}})


@pytest.mark.parametrize(
    ("table", "wrong", "right"),
    [
        ("record", "lowwer", "lower"),
        ("sketch", "bandwith", "bandwidth"),
        ("sketch", "row", "rows"),
        ("privacy", "epsilom", "epsilon"),
        ("privacy", "total-epsilon", "total_epsilon"),
    ],
)
def test_a_misspelt_key_is_named_and_not_the_one_that_is_missing_for_it(table: str, wrong: str, right: str) -> None:
    keys = tables()
    keys[table] = {wrong if key == right else key: value for key, value in TABLES[table].items()}
    with pytest.raises(PlanError, match=f"^{table}.{wrong}: .*did you mean '{right}'"):
        Plan.from_fields(keys)
    top = tables()
    top["sketches"] = top.pop("sketch")
    with pytest.raises(PlanError, match=r"^sketches: .*did you mean 'sketch'\?"):
        Plan.from_fields(top)


def test_a_misspelt_key_of_a_table_in_a_list_is_named_first() -> None:
    groups = [{"columns": [0], "kernel": "euclidean", "bandwith": 1}]
    with pytest.raises(PlanError, match=r"^sketch.groups\[0\].bandwith: .*did you mean 'bandwidth'\?"):
        small_plan(sketch={"groups": groups, "kernel": ..., "bandwidth": ...})


def test_a_plan_that_its_author_may_not_mean_is_warned_of_once() -> None:
    usual: dict[str, Any] = tables(privacy={"epsilon": 10}, sketch={"bandwidth": 10})
    for changes, text in (
        ({"privacy": {"epsilon": 10.5}}, r"epsilon: 10\.5 is above 10, .* 36,316 times as likely"),
        ({"sketch": {"bandwidth": 10.5}}, r"bandwidth: 10\.5 exceeds the range of all its columns \(10 at most\)"),
        ({"sketch": {"rows": 2**10, "buckets": 2**15 + 1}}, r"take 256 MiB"),
        (
            {"sketch": {"kernel": ..., "bandwidth": ..., "groups": [
                {"columns": [0], "kernel": "euclidean", "bandwidth": 11},
                {"columns": [1], "kernel": "euclidean", "bandwidth": 9},
            ]}},
            r"groups\[0\].bandwidth: 11 exceeds",
        ),
    ):  # fmt: skip
        with pytest.warns(PlanWarning, match=text) as caught:
            plan = Plan(**tables(**changes))  # type: ignore[arg-type]  # tables by their names
        assert len(caught) == 1
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert Plan.from_bytes(plan.to_bytes()) == plan
            Plan(**usual)


@pytest.mark.parametrize(
    ("lower", "upper", "side", "counted", "cells"),
    [("-0.3", "0.6", "0.1", 9, 10), (0, "0.3", "0.1", 3, 4), ("40.5", "40.9", "0.01", 40, 41)],
)
def test_a_grid_that_rounding_gives_one_cell_more_than_it_has_counters_for_is_warned_of(
    lower: object, upper: object, side: str, counted: int, cells: int
) -> None:
    def made(buckets: int, rows: int) -> Plan:
        sketch = {"family": "partition", "bandwidth": side, "rows": rows, "buckets": buckets}
        return Plan(
            name="grid",
            record={"dim": 1, "lower": [lower], "upper": [upper]},
            sketch=sketch,
            privacy={"epsilon": 1, "total_epsilon": 1},
        )

    for rows in (1, 5):
        text = rf"sketch\.buckets: {counted} are fewer than the {cells} cells, .* float32, .* expected {cells} or more"
        with pytest.warns(PlanWarning, match=text):
            made(counted, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(cells, 1)
        made(2, 5)  # a count sketch on purpose
    with pytest.warns(PlanWarning, match="one row has no error bars then"):
        made(2, 1)


def test_unit_client_needs_its_bound_and_multiplies_the_noise() -> None:
    with pytest.raises(PlanError, match="is missing"):
        small_plan(privacy={"unit": "client"})
    assert client_plan(3).privacy.mechanism.scale == 3 * small_plan().privacy.mechanism.scale


def test_a_written_mechanism_is_verified_instead_of_computed() -> None:
    enough = {"name": "discrete-laplace", "scale": "1000", "count_scale": 2}
    assert small_plan(privacy={"mechanism": enough}).privacy.mechanism.scale == 1000
    for scale in ("21.9999", "10"):
        with pytest.raises(PlanError, match="supports the claim"):
            small_plan(privacy={"mechanism": {**enough, "scale": scale}})
    assert small_plan(privacy={"mechanism": {**enough, "scale": "22"}}).privacy.mechanism.count_scale == 2


def test_bytes_that_claim_more_privacy_than_their_mechanism_gives_are_refused() -> None:
    honest = small_plan().to_bytes()
    lying = honest.replace(b'"epsilon":"1"', b'"epsilon":"0.5"')
    assert lying != honest
    with pytest.raises(PlanError, match="supports the claim"):
        Plan.from_bytes(lying)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b'"format":1', b'"format":2'),
        lambda data: data.replace(b'"power":1,', b""),
        lambda data: data.replace(b'"bandwidth":"2.5"', b'"bandwidth":"2.50"'),
        lambda data: data.replace(b'"length":"1h"', b'"length":"60m"'),
        lambda data: data + b" ",
        lambda data: data[:-1],
        lambda data: b"[]",
    ],
)
def test_bytes_that_are_not_the_canonical_ones_are_refused(change: object) -> None:
    data = small_plan().to_bytes()
    altered = change(data)  # type: ignore[operator]  # a parameter of the test
    assert altered != data
    with pytest.raises(PlanError):
        Plan.from_bytes(altered)


def test_a_plan_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        small_plan().name = "other"  # type: ignore[misc]  # that is the point


def test_windows_are_half_open_and_consecutive() -> None:
    window = small_plan(window={"epoch": "1970-01-01T01:00:00Z"}).window
    assert [window.index_at(time) for time in (0, 3_600_000 - 1, 3_600_000, 7_200_000 - 1, 7_200_000)] == [
        -1,
        -1,
        0,
        0,
        1,
    ]
    assert window.start_ms(1) == window.end_ms(0) == 7_200_000


SILO = {"mode": "local", "local": {"form": "silo"}}


@pytest.mark.parametrize(
    ("window", "key"),
    [
        ({"length": "59s", "lateness": "0s"}, "length"),
        ({"length": "1ms", "lateness": "0s"}, "length"),
        ({"length": "1m", "lateness": "3840001ms"}, "lateness"),
        ({"length": "1h", "lateness": "3660d"}, "lateness"),
    ],
)
def test_a_plan_whose_clients_submit_in_every_window_has_none_submit_at_every_moment(
    window: dict[str, object], key: str
) -> None:
    with pytest.raises(PlanError, match="where every client submits in every window") as caught:
        small_plan(window=window, privacy=SILO)
    assert caught.value.key == f"window.{key}"
    made = small_plan(window=window)
    assert Plan.from_bytes(made.to_bytes()) == made
    with pytest.raises(PlanError, match="where every client submits in every window"):
        made.replace_privacy(**SILO)


def test_a_silos_plan_may_have_windows_of_a_minute_and_a_lateness_of_sixty_four() -> None:
    plan = small_plan(window={"length": "60s", "lateness": "64m"}, privacy=SILO)
    assert Plan.from_bytes(plan.to_bytes()) == plan


def test_a_plan_shows_what_it_promises() -> None:
    assert repr(small_plan(privacy={"epsilon": 0.5})).endswith(", family='hashed', ε=0.5)")
    delta = {"epsilon": 0.5, "delta": "0.000001", "total_delta": "0.00001"}
    assert repr(small_plan(privacy=delta)).endswith(", family='hashed', ε=0.5, δ=1e-6)")


def test_values_are_shown_as_a_plan_writes_them() -> None:
    shown = [
        Decimal("1E-6"),
        Decimal("1E-9"),
        Decimal("Infinity"),
        Fraction(1, 3),
        [Decimal("0.5"), "a"],
        {"k": Decimal(2)},
    ]
    texts = [str(PlanError("key", value, "another")).removeprefix("key: got ") for value in shown]
    assert [text.removesuffix(", expected another") for text in texts] == [
        *("0.000001", "1e-9", "inf", "1/3", "[0.5, 'a']", "{'k': 2}"),
    ]


# ------------------------------------------------------------------------------------- a sketch that leaves a choice
def moments(weights: str | None, *, order: int = 8, dim: int = 2, **privacy: object) -> Plan:
    """A plan of the hermite family; None: without the key."""
    sketch: dict[str, object] = {"family": "hermite", "kernel": "gaussian", "bandwidth": 2, "order": order}
    return Plan(
        name="moments",
        record={"dim": dim, "lower": [0] * dim, "upper": [10] * dim},
        sketch=sketch if weights is None else {**sketch, "weights": weights},
        privacy={"epsilon": 1, "total_epsilon": 1, **privacy},
    )


DELTA = {"delta": "0.000001", "total_delta": "0.000001"}


@pytest.mark.parametrize(("privacy", "taken"), (({}, "laplace"), (DELTA, "gaussian")))
@pytest.mark.parametrize("dim", (1, 2, 3))
def test_the_weights_with_the_least_noise_are_taken(dim: int, privacy: dict[str, Any], taken: str) -> None:
    """Each is calibrated by itself: at δ = 10⁻⁶ equal weights in two dimensions would get Laplace noise."""
    plans = {weights: moments(weights, dim=dim, **privacy) for weights in ("equal", "gaussian", "laplace")}
    least = min(plans.values(), key=noise_std_error)
    assert moments("auto", dim=dim, **privacy).to_bytes() == least.to_bytes()
    expected = "laplace" if dim == 1 else taken
    assert least.family.to_fields()["weights"] == expected
    assert least.privacy.mechanism.name == f"discrete-{expected}"
    assert noise_std_error(least) < 0.97 * noise_std_error(plans["equal"])


def test_equal_weights_leave_no_trace_in_the_bytes_and_are_the_default() -> None:
    plan = moments(None)
    assert "weights" not in json.loads(plan.to_bytes())["sketch"]
    assert plan.id == moments("equal").id == moments(None).id != moments("auto").id
    assert moments("auto", order=1).id == moments(None, order=1).id, "one moment has one scale"


def test_weights_that_were_chosen_are_those_of_the_bytes() -> None:
    plan = moments("auto")
    assert Plan.from_bytes(plan.to_bytes()) == plan
    fields = json.loads(plan.to_bytes())
    for other in ("auto", "equal"):
        fields["sketch"]["weights"] = other
        with pytest.raises(PlanError):
            Plan.from_bytes(canonical.encode(fields))
    changed = plan.replace_privacy(epsilon="0.5", total_epsilon=3)
    assert changed.family == plan.family, "a sketch keeps its counters"


def test_weights_that_a_written_mechanism_does_not_support_are_not_taken() -> None:
    mechanism = moments("equal").privacy.mechanism
    written = mechanism.to_fields()
    assert moments("auto", mechanism=written).id == moments("equal").id
    with pytest.raises(PlanError, match=r"privacy\.mechanism"):
        moments("laplace", mechanism=written)
    with pytest.raises(PlanError, match=r"privacy\.mechanism"):
        moments("auto", mechanism={**written, "scale": "10"})


def test_weights_of_another_family_or_name_are_refused() -> None:
    with pytest.raises(PlanError, match=r"sketch\.weights: got 'auto', expected a known key"):
        small_plan(sketch={"weights": "auto"})
    with pytest.raises(PlanError, match=r"sketch\.weights: got 'best', expected one of 'equal', 'gaussian'"):
        moments("best")
    with pytest.raises(PlanError, match="reports"):
        Plan.from_fields(
            {
                "name": "moments",
                "record": {"dim": 1, "lower": [0], "upper": [10]},
                "sketch": {"family": "hermite", "kernel": "gaussian", "bandwidth": 2, "weights": "auto"},
                "privacy": {"mode": "local", "epsilon": 1, "total_epsilon": 1},
                "window": {"length": "1h", "lateness": "1m"},
            }
        )
