"""A mechanism holds exact parameters, refuses others by their key, and survives its encoding."""

from fractions import Fraction

import pytest

from hushsum.canonical import decode, encode
from hushsum.errors import NotBuiltError, PlanError
from hushsum.noise import SAMPLERS
from hushsum.privacy.mechanism import Mechanism
from hushsum.schema import Table

MECHANISM = Mechanism("discrete-laplace", Fraction(1053), 53)


def test_its_noise_is_the_sampler_of_its_name_and_scale() -> None:
    assert MECHANISM.noise() == SAMPLERS[MECHANISM.name](MECHANISM.scale)


def test_it_survives_the_canonical_encoding() -> None:
    for mechanism in (MECHANISM, Mechanism("discrete-laplace", Fraction(1, 3), 1)):
        fields = decode(encode(mechanism.to_fields()))
        assert Mechanism.from_table(Table(fields, "privacy.mechanism")) == mechanism


@pytest.mark.parametrize(
    ("key", "change"),
    (
        ("name", {"name": "laplace"}),
        ("scale", {"scale": Fraction(0)}),
        ("scale", {"scale": Fraction(2**48 + 1)}),
        ("scale", {"scale": 1053.0}),
        ("count_scale", {"count_scale": 0}),
        ("count_scale", {"count_scale": True}),
    ),
    ids=str,
)
def test_a_parameter_out_of_range_is_refused_by_its_key(key: str, change: dict[str, object]) -> None:
    fields: dict[str, object] = {"name": "discrete-laplace", "scale": Fraction(1053), "count_scale": 53}
    with pytest.raises(PlanError) as refusal:
        Mechanism(**{**fields, **change})  # type: ignore[arg-type]  # of the wrong type on purpose
    assert refusal.value.key == f"privacy.mechanism.{key}"


def test_a_known_mechanism_that_is_not_built_is_refused_by_name() -> None:
    fields = {**MECHANISM.to_fields(), "name": "discrete-gaussian"}
    with pytest.raises(NotBuiltError, match="discrete-gaussian"):
        Mechanism.from_table(Table(fields, "privacy.mechanism"))


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(PlanError, match=r"privacy\.mechanism\.sacle"):
        Mechanism.from_table(Table({**MECHANISM.to_fields(), "sacle": "2"}, "privacy.mechanism"))
