"""A kernel that stands in the wrong plan is refused with the place where it can stand."""

import pytest

from hushsum import Plan
from hushsum.errors import PlanError
from hushsum.families.limits import FAMILIES_OF, KERNELS_OF_SETS
from tests.plans import model_plan, set_plan, small_plan, tables

KERNEL_OF = {"hashed": "euclidean", "fourier": "gaussian", "hermite": "gaussian"}


def of_kernel(family: str, kernel: str, **record: object) -> Plan:
    keys: dict[str, object] = {"family": family, "kernel": kernel}
    if family != "hashed":
        keys["buckets"] = ...
    if family == "hermite":
        keys.update(rows=..., seed=...)
    if kernel == "exponential-p":
        keys["exponent"] = 1.5
    if kernel in {"angular", "jaccard"}:
        keys["bandwidth"] = ...
    return Plan.from_fields(tables(sketch=keys, record=record))


@pytest.mark.parametrize("kernel", FAMILIES_OF)
@pytest.mark.parametrize("family", KERNEL_OF)
def test_the_families_that_are_named_have_the_kernel_and_others_do_not(family: str, kernel: str) -> None:
    if family in FAMILIES_OF[kernel]:
        assert of_kernel(family, kernel).family.name == family
        return
    with pytest.raises(PlanError, match=f"sketch.kernel: got '{kernel}'") as refused:
        of_kernel(family, kernel)
    if family != "hermite":  # which has one kernel alone
        named = " or ".join(map(repr, FAMILIES_OF[kernel]))
        assert refused.value.expected.endswith(f"(family {named} has it)")


@pytest.mark.parametrize("kernel", FAMILIES_OF)
def test_a_kernel_of_vectors_is_refused_for_sets_because_of_their_kind(kernel: str) -> None:
    record = {**dict.fromkeys(("dim", "lower", "upper"), ...), "kind": "set"}
    with pytest.raises(PlanError, match=r"expected one of 'jaccard' \(because record.kind = 'set'\)"):
        of_kernel("hashed", kernel, **record)


@pytest.mark.parametrize("family", ("hashed", "fourier"))
def test_a_kernel_of_sets_is_refused_for_vectors_because_of_their_kind(family: str) -> None:
    (kernel,) = KERNELS_OF_SETS
    with pytest.raises(PlanError, match=r"\(because record.kind = 'vector'\)"):
        of_kernel(family, kernel)


def test_a_kernel_that_nobody_knows_has_no_hint() -> None:
    with pytest.raises(PlanError) as refused:
        of_kernel("hashed", "nonsense")
    assert refused.value.expected == "one of 'euclidean', 'manhattan', 'laplacian', 'angular'"


def test_a_query_has_as_many_coordinates_as_its_family_says() -> None:
    partition: dict[str, object] = {"family": "partition", "kernel": ...}
    vectors = [of_kernel(*each) for each in KERNEL_OF.items()] + [small_plan(sketch=partition)]
    assert [plan.family.query_dim for plan in vectors] == [2] * 4
    assert set_plan().family.query_dim == 0
    assert model_plan().family.query_dim == 2
