"""A mechanism holds exact parameters, refuses others by their key, and survives its encoding."""

from fractions import Fraction

import pytest

from hushsum.canonical import decode, encode
from hushsum.errors import PlanError
from hushsum.noise import SAMPLERS
from hushsum.privacy.mechanisms import Mechanism
from hushsum.schema import Table

MECHANISM = Mechanism("discrete-laplace", Fraction(1053), 53)
GAUSSIAN = Mechanism("discrete-gaussian", Fraction("21842.8"), 8, clients_scale=Fraction(20))


@pytest.mark.parametrize("mechanism", (MECHANISM, GAUSSIAN), ids=lambda mechanism: mechanism.name)
def test_its_noise_is_the_sampler_of_its_name_and_scale(mechanism: Mechanism) -> None:
    assert mechanism.noise() == SAMPLERS[mechanism.name](mechanism.scale)


def test_the_scale_of_a_gaussian_is_its_variance() -> None:
    assert GAUSSIAN.noise().std == pytest.approx(21842.8**0.5)


def test_the_number_of_clients_has_discrete_laplace_noise_where_there_is_a_test() -> None:
    assert GAUSSIAN.clients_noise() == SAMPLERS["discrete-laplace"](Fraction(20))
    assert MECHANISM.clients_noise() is None


def test_the_scale_for_the_clients_is_written_only_where_it_is_set() -> None:
    assert MECHANISM.to_fields() == {"name": "discrete-laplace", "scale": "1053", "count_scale": 53}
    assert GAUSSIAN.to_fields()["clients_scale"] == "20"


def test_it_survives_the_canonical_encoding() -> None:
    for mechanism in (MECHANISM, GAUSSIAN, Mechanism("discrete-laplace", Fraction(1, 3), 1)):
        fields = decode(encode(mechanism.to_fields()))
        assert Mechanism.from_table(Table(fields, "privacy.mechanism")) == mechanism


@pytest.mark.parametrize(
    ("key", "change"),
    (
        ("name", {"name": "laplace"}),
        ("scale", {"scale": Fraction(0)}),
        ("scale", {"scale": Fraction(2**48 + 1)}),
        ("scale", {"scale": 1053.0}),
        ("scale", {"name": "discrete-gaussian", "scale": Fraction(2**90 + 1)}),
        ("scale", {"name": "discrete-gaussian", "scale": Fraction(1, 2**17)}),
        ("clients_scale", {"clients_scale": Fraction(0)}),
        ("clients_scale", {"name": "discrete-gaussian", "clients_scale": Fraction(2**48 + 1)}),
        ("clients_scale", {"clients_scale": 20}),
        ("count_scale", {"count_scale": -1}),
        ("count_scale", {"count_scale": True}),
        ("count_scale", {"count_scale": 2**33 + 1}),  # 10^9 records would wrap around
    ),
    ids=str,
)
def test_a_parameter_out_of_range_is_refused_by_its_key(key: str, change: dict[str, object]) -> None:
    fields: dict[str, object] = {"name": "discrete-laplace", "scale": Fraction(1053), "count_scale": 53}
    with pytest.raises(PlanError) as refusal:
        Mechanism(**{**fields, **change})  # type: ignore[arg-type]  # of the wrong type on purpose
    assert refusal.value.key == f"privacy.mechanism.{key}"


def test_a_gaussian_holds_what_would_be_too_much_for_a_laplace() -> None:
    assert Mechanism("discrete-gaussian", Fraction(2**90), 1).noise().std == 2.0**45


def test_an_unknown_mechanism_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(PlanError, match="'discrete-laplace', 'discrete-gaussian'"):
        Mechanism.from_table(Table({**MECHANISM.to_fields(), "name": "gaussian"}, "privacy.mechanism"))


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(PlanError, match=r"privacy\.mechanism\.sacle"):
        Mechanism.from_table(Table({**MECHANISM.to_fields(), "sacle": "2"}, "privacy.mechanism"))
