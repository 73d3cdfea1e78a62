"""A batch of reports travels in few bytes that tell nothing of their order, and is refused whole or counted whole."""

import numpy as np
import pytest

from hushsum import DeltaError, Plan, Reason
from hushsum.bitpacking import varint
from hushsum.delta import DeltaId, read_header
from hushsum.entropy import OsEntropy
from hushsum.local.report_batch import ReportBatch, count_packed, unpack
from hushsum.local.reports import reports, sizes_of
from tests.hushsum.local.report_plans import BOTH, Int64, counted, report_plan, wave_plan

ID = DeltaId(2**64 - 1, 0)
KERNELS = pytest.mark.parametrize("kernels", ["plain", "fast"])
#: One plan for each number of bytes that a report may take.
WIDTHS = {1: (3, 16), 2: (20, 64), 3: (1000, 1024), 4: (2**14, 2**11)}


def plan_of(width: int) -> Plan:
    rows, buckets = WIDTHS[width]
    return report_plan(sketch={"rows": rows, "buckets": buckets})


def batch_of(plan: Plan, numbers: Int64 | list[int], window: int = -7) -> ReportBatch:
    return ReportBatch(plan.id, window, ID, np.array(numbers, np.int64))


def zeros(plan: Plan) -> tuple[Int64, Int64]:
    return np.zeros(plan.counters_shape, np.int64), np.zeros(1, np.int64)


@KERNELS
@pytest.mark.parametrize("width", WIDTHS)
def test_a_packed_batch_comes_back_in_order_and_is_counted(
    width: int, kernels: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    plan = plan_of(width)
    assert sizes_of(plan).width == width
    limit = sizes_of(plan).rows * sizes_of(plan).outputs
    numbers = np.concatenate([rng.integers(0, limit, 1000), [limit - 1, 0, 0]])
    data = batch_of(plan, numbers).pack(plan)
    back = unpack(data, plan)
    assert (back.plan_id, back.window, back.id) == (plan.id, -7, ID)
    assert back.reports.dtype == np.int64
    assert np.array_equal(back.reports, np.sort(numbers))
    counters, counts = zeros(plan)
    assert count_packed(data, plan, counters, counts) == 1003
    assert count_packed(data, plan, counters, counts) == 1003
    assert np.array_equal(counters, 2 * counted(plan, numbers))
    assert counts.tolist() == [2006]


@pytest.mark.parametrize("randomiser", BOTH)
@pytest.mark.parametrize("sizes", [(20, 64, 1), (1000, 64, 1), (1000, 256, 3), (300, 1024, 1)])
def test_a_report_takes_the_bytes_of_its_row_and_value_and_at_most_one_more(
    randomiser: str, sizes: tuple[int, int, int]
) -> None:
    rows, buckets, classes = sizes
    labels = [] if classes == 1 else [str(i) for i in range(classes)]
    plan = report_plan(randomiser, sketch={"rows": rows, "buckets": buckets}, record={"classes": labels})
    n = 500
    found, _ = reports(plan, np.ones((n, 2)), (labels and ["0"] * n) or None, OsEntropy())
    most = -(-(rows * buckets * classes - 1).bit_length() // 8) + 1
    assert len(batch_of(plan, found).pack(plan)) <= n * most + 64


def test_the_order_of_records_leaves_no_trace(rng: np.random.Generator) -> None:
    plan = report_plan()
    numbers = rng.integers(0, 20 * 64, 300)
    assert batch_of(plan, numbers).pack(plan) == batch_of(plan, rng.permutation(numbers)).pack(plan)


def test_its_header_is_read_like_that_of_a_delta() -> None:
    plan = wave_plan()
    header = read_header(batch_of(plan, [5, 3], window=12).pack(plan))
    assert (header.plan_id, header.window, header.id) == (plan.id, 12, ID)


def spoiled(plan: Plan) -> dict[str, tuple[bytes, Reason]]:
    """Bytes that are refused, and why."""
    data = batch_of(plan, [0, 1, 1279]).pack(plan)
    header, body = data[:-7], data[-6:]
    stream = header[33:41]
    return {
        "empty bytes": (b"", Reason.MALFORMED),
        "cut": (data[:-1], Reason.MALFORMED),
        "longer": (data + b"\0", Reason.MALFORMED),
        "descending": (header + varint(3) + body[2:4] + body[:2] + body[4:], Reason.MALFORMED),
        "out of range": (header + varint(3) + body[:4] + (1280).to_bytes(2, "little"), Reason.BUCKET_OUT_OF_RANGE),
        "far out of range": (header + varint(3) + body[:4] + b"\xff\xff", Reason.BUCKET_OUT_OF_RANGE),
        "none": (header + varint(0), Reason.EMPTY),
        "too many": (header + varint(2**16 + 1) + bytes(2 * 2**15), Reason.TOO_MANY_RECORDS),
        "absurdly many": (header + varint(2**62), Reason.TOO_MANY_RECORDS),
        "too large": (data + bytes(plan.upload_bytes_max), Reason.TOO_LARGE),
        "a number in a longer form": (header + b"\x83\x00" + body, Reason.MALFORMED),
        "another plan": (data[:1] + bytes(32) + data[33:], Reason.WRONG_PLAN),
        "a newer format": (b"\x02" + data[1:], Reason.NEWER_FORMAT),
        "a second of its stream": (data[:33] + stream + varint(1) + data[42:], Reason.MALFORMED),
    }


@KERNELS
@pytest.mark.parametrize("name", spoiled(report_plan()))
def test_bytes_that_the_plan_does_not_allow_are_refused_and_change_nothing(
    name: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    plan = report_plan()
    data, reason = spoiled(plan)[name]
    counters, counts = zeros(plan)
    for read in (lambda: unpack(data, plan), lambda: count_packed(data, plan, counters, counts)):
        with pytest.raises(DeltaError) as caught:
            read()
        assert caught.value.reason is reason
    assert not counters.any()
    assert not counts.any()


def test_the_largest_batch_is_within_the_upload_limit() -> None:
    plan = plan_of(3)
    numbers = np.full(plan.delta_records_max, 1_023_999, np.int64)
    data = batch_of(plan, numbers, window=2**60).pack(plan)
    assert len(data) <= plan.upload_bytes_max
    assert len(unpack(data, plan).reports) == len(numbers)
    with pytest.raises(DeltaError, match="too_many_records"):
        batch_of(plan, np.append(numbers, 0)).pack(plan)


@pytest.mark.parametrize("numbers", [[-1], [20 * 64]])
def test_a_device_packs_no_report_out_of_range(numbers: list[int]) -> None:
    plan = report_plan()
    with pytest.raises(ValueError, match="out of range"):
        batch_of(plan, numbers).pack(plan)


def test_a_device_packs_one_batch_a_stream() -> None:
    plan = report_plan()
    with pytest.raises(ValueError, match="only one of its stream"):
        ReportBatch(plan.id, 0, DeltaId(1, 1), np.array([1])).pack(plan)


def test_reports_never_show_in_a_repr() -> None:
    assert "1234567" not in repr(batch_of(report_plan(), [1234567]))


def test_compiled_loops_are_ready_after_a_warm_up() -> None:
    pytest.importorskip("numba")
    from hushsum.local import report_batch_loops

    report_batch_loops.warm_up()
    known = len(report_batch_loops.add.signatures)  # type: ignore[attr-defined]  # of numba's function
    counters = np.zeros(8, np.int64)
    for width in (1, 2, 3, 4):
        octets = b"".join(number.to_bytes(width, "little") for number in (0, 2, 2, 5, 7))
        assert report_batch_loops.look(octets, width) == (True, 7)
        assert report_batch_loops.look(octets[-width:] + octets, width) == (False, 7)
        report_batch_loops.count(octets, width, counters)
    assert counters.tolist() == [4, 0, 8, 0, 0, 4, 0, 4]
    assert len(report_batch_loops.add.signatures) == known  # type: ignore[attr-defined]  # of numba's function
