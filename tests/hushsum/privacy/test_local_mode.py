"""``[privacy.local]``: what each form takes, what it refuses by name, and what a plan of it is."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

import pytest

from hushsum import Plan
from hushsum.delta_sizes import BYTES_MAX
from hushsum.errors import GuaranteeError, Missing, PlanError
from hushsum.privacy.exact_numbers import notch_of
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.local_mode import SHUFFLE_MAX, LocalMode, Reports
from tests.hushsum.local_plans import SHUFFLED, bit_plan, report_plan, silo_plan
from tests.plans import classed_plan, secure_plan, set_plan, small_plan

CLIENT: Mapping[str, object] = {"unit": "client", "records_per_client": 3}
PROJECTIVE: Mapping[str, object] = {"local": {"randomiser": "projective"}}
GAUSSIAN: Mapping[str, object] = {"delta": "0.000001", "total_delta": "0.000001"}
HERMITE: Mapping[str, object] = {
    "family": "hermite", "kernel": "gaussian", "rows": ..., "buckets": ..., "seed": ...,
}  # fmt: skip
PLANS = {
    "k-rr": report_plan(),
    "k-rr of clients": report_plan(privacy=CLIENT, window={"min_reports": 5}),
    "projective": report_plan(privacy=PROJECTIVE),
    "memoised": report_plan(privacy={"local": {"memoise": True}}),
    "shuffled": report_plan(privacy=SHUFFLED),
    "one bit": bit_plan(),
    "classes": classed_plan(privacy={"mode": "local"}),
    "sets": set_plan(privacy={"mode": "local"}),
    "silo": silo_plan(),
    "silo, zCDP": silo_plan(privacy=GAUSSIAN),
    "silo of clients": silo_plan(privacy=CLIENT, window={"min_clients": 5}),
    "silo of another family": silo_plan(sketch=HERMITE),
    "silo of weighted moments": silo_plan(sketch={**HERMITE, "weights": "auto"}),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_local_plan_is_its_bytes(plan: Plan) -> None:
    again = Plan.from_bytes(plan.to_bytes())
    assert again.to_bytes() == plan.to_bytes()
    assert (again.id, again.privacy) == (plan.id, plan.privacy)
    assert Guarantee.from_fields(plan.guarantee.to_fields()) == plan.guarantee
    assert b'"participation"' not in plan.to_bytes()


def test_keys_stand_in_the_bytes_only_where_a_form_has_them() -> None:
    assert b'"local":{"form":"silo"}' in silo_plan().to_bytes()
    written = b'"local":{"form":"report","memoise":"false","randomiser":"k-rr","shuffle_min":0}'
    assert written in report_plan().to_bytes()
    assert b"min_reports" not in report_plan().to_bytes()
    assert b'"min_reports":5' in report_plan(window={"min_reports": 5}).to_bytes()
    for plan in (small_plan(), secure_plan()):
        assert not {b"local", b"min_reports", b'"field"'} & set(plan.to_bytes().split(b":"))
        assert b"local" not in plan.to_bytes()


def test_defaults_are_those_of_the_family() -> None:
    assert report_plan().privacy.local == LocalMode("report", "k-rr", memoise=False, shuffle_min=0)
    assert bit_plan().privacy.local == LocalMode("report", "one-bit")
    assert silo_plan().privacy.local == LocalMode("silo", None)


def test_the_relation_follows_from_the_form() -> None:
    for plan, relation in ((report_plan(), "replace"), (silo_plan(), "zero-out")):
        assert plan.guarantee.relation == plan.limits.relation == plan.privacy.relation == relation
        assert plan.privacy.participation == "public"


def test_counters_of_reports_are_one_for_each_report() -> None:
    assert report_plan().counters_shape == (1, 20, 64)
    assert classed_plan(privacy={"mode": "local"}).counters_shape == (1, 20, 192)
    assert bit_plan().counters_shape == (1, 20, 4)
    projective = report_plan(privacy=PROJECTIVE)
    assert projective.privacy.mechanism.field is not None
    outputs = Reports("projective", 20, 64).outputs(projective.privacy.mechanism.field)
    assert projective.counters_shape == (1, 20, outputs)
    assert silo_plan().counters_shape == (1, 20, 64)


def test_what_a_device_sends_at_most() -> None:
    plan = report_plan()
    assert plan.report_sizes is not None
    assert plan.report_sizes.width == 2  # 1,280 different reports
    assert plan.delta_records_max == 65_536
    assert plan.upload_bytes_max == plan.delta_bytes_max == 64 + 2 * 65_536
    silo = silo_plan()
    assert silo.upload_bytes_max == 96 + silo.words.bytes
    assert silo.delta_records_max == small_plan().delta_records_max
    assert small_plan().upload_bytes_max == small_plan().delta_bytes_max
    shuffled = report_plan(privacy={**SHUFFLED, "local": {"shuffle_min": 100_000}})
    assert shuffled.delta_records_max == 200_000


def test_the_largest_batch_is_a_message_and_never_smaller_than_a_shuffled_one() -> None:
    most = {"local": {"shuffle_min": SHUFFLE_MAX}}
    plan = report_plan(privacy={**SHUFFLED, **most}, sketch={"rows": 40_000, "buckets": 1024})
    assert plan.report_sizes is not None
    assert plan.report_sizes.width == 4
    assert plan.delta_records_max >= SHUFFLE_MAX
    assert plan.upload_bytes_max <= BYTES_MAX


def test_words_belong_to_vectors_alone() -> None:
    with pytest.raises(GuaranteeError, match="send reports, one a record: it has no secure sum"):
        _ = report_plan().words


REPORTED: list[tuple[str, str, dict[str, Mapping[str, object]]]] = [
    ("privacy.participation", "always visible", {"privacy": {"participation": "public"}}),
    ("privacy.secure", "only for mode 'secure'", {"privacy": {"secure": {}}}),
    ("privacy.min_clients_share", "belongs to", {"privacy": {"min_clients_share": "0.05"}}),
    ("privacy.local.form", "one of 'silo', 'report'", {"privacy": {"local": {"form": "both"}}}),
    ("privacy.local.form", "one of 'silo', 'report'", {"privacy": {"local": {"form": 1}}}),
    ("privacy.local.randomiser", "one of 'k-rr', 'proj", {"privacy": {"local": {"randomiser": "one-bit"}}}),
    ("privacy.local.memoise", "one of 'true', 'false'", {"privacy": {"local": {"memoise": "yes"}}}),
    ("privacy.local.memoise", "one of 'true', 'false'", {"privacy": {"local": {"memoise": 1}}}),
    ("privacy.local.shuffle_min", "from 0 to 2097152", {"privacy": {"local": {"shuffle_min": SHUFFLE_MAX + 1}}}),
    ("privacy.local.shuffle_min", "from 0 to 2097152", {"privacy": {"local": {"shuffle_min": -1}}}),
    ("privacy.local.memoize", "did you mean 'memoise'", {"privacy": {"local": {"memoize": True}}}),
    ("privacy.local.memoise", "remove one of the two", {"privacy": {**SHUFFLED, "local": {
        "memoise": True, "shuffle_min": 9}}}),
    ("privacy.delta", "0: reports are pure", {"privacy": {"delta": "0.1"}}),
    ("privacy.delta", "above 0 with", {"privacy": {"local": {"shuffle_min": 1000}}}),
    ("privacy.epsilon", "at most 20", {"privacy": {"epsilon": 21}}),
    ("window.min_clients", "use window.min_reports", {"window": {"min_clients": 5}}),
    ("window.min_reports", "an integer from 0", {"window": {"min_reports": -1}}),
    ("window.lateness", "a shuffler forwards", {"privacy": SHUFFLED, "window": {"lateness": "0s"}}),
    ("sketch.family", "privacy.local.form = 'silo'", {"sketch": HERMITE}),
    ("privacy.total_epsilon", "at least 4", {"privacy": {"total_epsilon": 3}}),
    ("privacy.mechanism.scale", "likelihood ratio 60", {"privacy": {"mechanism": {
        "name": "k-rr", "scale": 60, "count_scale": 1}}}),
    ("privacy.mechanism.scale", "got 'discrete-laplace'", {"privacy": {"mechanism": {
        "name": "discrete-laplace", "scale": 60, "count_scale": 1}}}),
    ("privacy.mechanism.field", "a prime from 2", {"privacy": {**PROJECTIVE, "mechanism": {
        "name": "projective", "scale": 54, "count_scale": 1}}}),
    ("privacy.mechanism.field", "prime order, got field = 8", {"privacy": {**PROJECTIVE, "mechanism": {
        "name": "projective", "scale": 54, "count_scale": 1, "field": 8}}}),
    ("privacy.mechanism.field", "more than", {"privacy": {**PROJECTIVE, "mechanism": {
        "name": "projective", "scale": 54, "count_scale": 1, "field": 16_777_259}}}),
    ("privacy.mechanism.field", "have a field below 128, got field = 131", {
        "privacy": {**PROJECTIVE, "epsilon": 2, "mechanism": {
            "name": "projective", "scale": 3, "count_scale": 1, "field": 131}},
        "sketch": {"buckets": 64}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "expected", "changes"), REPORTED, ids=[f"{number}-{key}" for number, (key, *_) in enumerate(REPORTED)]
)
def test_what_does_not_go_with_reports_is_refused(
    key: str, expected: str, changes: dict[str, Mapping[str, object]]
) -> None:
    with pytest.raises(PlanError) as refusal:
        report_plan(**changes)
    assert refusal.value.key == key
    assert expected in str(refusal.value)


SILO = {"form": "silo"}
SILOED: list[tuple[str, str, dict[str, Mapping[str, object]]]] = [
    ("privacy.participation", "always visible", {"privacy": {"participation": "protected"}}),
    ("privacy.local.randomiser", "only for form 'report'", {"privacy": {"local": {**SILO, "randomiser": "k-rr"}}}),
    ("privacy.local.memoise", "only for form 'report'", {"privacy": {"local": {**SILO, "memoise": False}}}),
    ("privacy.local.shuffle_min", "only for form 'report'", {"privacy": {"local": {**SILO, "shuffle_min": 0}}}),
    ("window.min_reports", "only for plans of reports", {"window": {"min_reports": 5}}),
    ("window.lateness", "at least '1s'", {"window": {"lateness": "999ms"}}),
    ("window.length", "at least '1m'", {"window": {"length": "59s"}}),
    ("privacy.total_delta", "at least delta", {"privacy": {"delta": "0.1"}}),
    ("privacy.mechanism.scale", "adds no noise to counters", {"privacy": {"mechanism": {
        "name": "k-rr", "scale": 2, "count_scale": 1}}}),
    ("privacy.mechanism.honest_survivors", "only for mode 'secure'", {"privacy": {"mechanism": {
        "name": "discrete-laplace", "scale": 22, "count_scale": 2, "honest_survivors": 8}}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "expected", "changes"), SILOED, ids=[f"{number}-{key}" for number, (key, *_) in enumerate(SILOED)]
)
def test_what_does_not_go_with_silos_is_refused(
    key: str, expected: str, changes: dict[str, Mapping[str, object]]
) -> None:
    with pytest.raises(PlanError) as refusal:
        silo_plan(**changes)
    assert refusal.value.key == key
    assert expected in str(refusal.value)


def test_a_label_has_no_room_in_one_bit() -> None:
    with pytest.raises(PlanError, match="cannot contain a label") as refusal:
        bit_plan(record={"classes": ["a", "b"]})
    assert refusal.value.key == "record.classes"


@pytest.mark.parametrize("make", [small_plan, secure_plan], ids=["central", "secure"])
@pytest.mark.parametrize(
    ("key", "changes"),
    [("privacy.local", {"privacy": {"local": {}}}), ("window.min_reports", {"window": {"min_reports": 1}})],
)
def test_other_plans_know_nothing_of_reports(make: Callable[..., Plan], key: str, changes: dict[str, object]) -> None:
    with pytest.raises(PlanError, match="local") as refusal:
        make(**changes)
    assert refusal.value.key == key


def test_a_missing_delta_of_shuffled_reports_is_said_to_be_missing() -> None:
    with pytest.raises(PlanError) as refusal:
        report_plan(privacy={"local": {"shuffle_min": 9}})
    assert refusal.value.came is Missing.MISSING


def test_a_device_refuses_a_ratio_one_notch_too_large() -> None:
    fields = report_plan().to_fields()
    del fields["format"]
    Plan.from_fields(fields)
    ratio = report_plan().privacy.mechanism.scale
    fields["privacy"]["mechanism"]["scale"] = ratio + notch_of(ratio)  # type: ignore[index]  # tables of a plan
    with pytest.raises(PlanError, match=r"got 54\.5982") as refusal:
        Plan.from_fields(fields)
    assert refusal.value.key == "privacy.mechanism.scale"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("form", {"form": "both"}),
        ("randomiser", {"randomiser": None}),
        ("randomiser", {"randomiser": "subset"}),
        ("memoise", {"memoise": 1}),
        ("memoise", {"memoise": True, "shuffle_min": 1}),
        ("shuffle_min", {"shuffle_min": -1}),
        ("shuffle_min", {"shuffle_min": True}),
        (None, {"form": "silo"}),
        (None, {"form": "silo", "randomiser": None, "memoise": True}),
    ],
)  # fmt: skip
def test_a_mode_that_contradicts_itself_is_refused(field: str | None, values: dict[str, object]) -> None:
    with pytest.raises(PlanError) as refusal:
        LocalMode(**values)  # type: ignore[arg-type]  # wrong on purpose
    assert refusal.value.key == (f"privacy.local.{field}" if field else "privacy.local")


def test_another_mode_keeps_no_key_of_the_old_one() -> None:
    pure = {"delta": None, "total_delta": None}
    silo = small_plan(privacy=GAUSSIAN).replace_privacy(mode="local", local={"form": "silo"})
    assert silo.privacy.delta == Fraction(1, 10**6)
    report = silo.replace_privacy(local=None, **pure)
    assert report.privacy.local == LocalMode()
    shuffled = report.replace_privacy(**{**SHUFFLED, "local": {"shuffle_min": 1000}})
    assert shuffled.privacy.total_delta == 0  # nothing of it is ever charged
    assert shuffled.replace_privacy(epsilon=2).privacy.local == shuffled.privacy.local
    back = shuffled.replace_privacy(mode="central", **pure)
    assert (back.privacy.local, back.privacy.participation) == (None, "protected")
    secure = report.replace_privacy(mode="secure", total_delta="0.000001")
    assert (secure.privacy.local, secure.privacy.reports) == (None, None)
    assert secure.replace_privacy(mode="local").privacy.cohort is None


@pytest.mark.parametrize(
    ("plan", "field", "values"),
    [
        (report_plan(), "local", {"local": None}),
        (report_plan(), "local", {"mode": "central"}),
        (report_plan(), "relation", {"relation": "zero-out"}),
        (report_plan(), "local", {"delta": Fraction(1, 10)}),
        (report_plan(), "local", {"local": LocalMode("report", "one-bit")}),
        (report_plan(), "mechanism.name", {"mechanism": silo_plan().privacy.mechanism}),
        (silo_plan(), "relation", {"relation": "replace"}),
        (silo_plan(), "mechanism.name", {"local": LocalMode()}),
        (small_plan(), "local", {"local": LocalMode("silo", None)}),
        (small_plan(), "mechanism.name", {"mechanism": report_plan().privacy.mechanism}),
    ],
)  # fmt: skip
def test_a_guarantee_that_contradicts_its_form_is_refused(plan: Plan, field: str, values: dict[str, object]) -> None:
    with pytest.raises(PlanError) as refusal:
        replace(plan.guarantee, **values)  # type: ignore[arg-type]  # fields of a guarantee
    assert refusal.value.key == f"guarantee.{field}"


@pytest.mark.parametrize("memoise", ["yes", "True", 1])
def test_bytes_of_a_guarantee_spell_a_boolean_in_one_way(memoise: object) -> None:
    fields = report_plan().guarantee.to_fields()
    fields["local"]["memoise"] = memoise  # type: ignore[index]  # tables of a guarantee
    with pytest.raises(PlanError, match=r"guarantee\.local\.memoise"):
        Guarantee.from_fields(fields)
