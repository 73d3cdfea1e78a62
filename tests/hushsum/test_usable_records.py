"""What is said of records that cannot be used: how many, why, and which."""

import numpy as np
import pytest

from hushsum import DroppedRecordsWarning, Sketch
from tests.plans import set_plan, small_plan

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("names", [None, ["age", "income"]])
def test_a_warning_names_some_unreadable_records_and_their_columns(names: list[str] | None) -> None:
    sketch = Sketch(small_plan(record={} if names is None else {"names": names}))
    first, second = names or ("x0", "x1")
    records = [[1.0, 2.0], [NAN, 3.0], [4.0, -INF], [NAN, NAN], [5.0, NAN]]
    with pytest.warns(DroppedRecordsWarning) as told:
        sketch.add(np.array(records))
    text = str(told[0].message)
    assert text.startswith("4 of 5 records were left out")
    assert text.endswith(f", such as record 1 ({first} is nan), record 2 ({second} is -inf), record 3")


def test_a_set_that_cannot_be_read_is_named_by_its_number() -> None:
    sketch = Sketch(set_plan())
    with pytest.warns(DroppedRecordsWarning, match=r"1 of 3 .*, such as record 1$"):
        sketch.add([["cough", "fever"], [], {"cough"}])
    assert sketch.records == 2
