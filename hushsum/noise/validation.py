"""What randomisers refuse: parameters, values and counts that are not what they are made for."""

from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

NOTHING: Final = -1  # stands for the value of an unusable record

Int64 = npt.NDArray[np.int64]


def check_parameters(randomiser: object, ratio: object, name: str, number: object, *, least: int) -> None:
    """Refuses a ratio, and a number of that name, that no such randomiser takes.

    Raises:
        TypeError: The ratio is no Fraction, or the number no integer.
        ValueError: The ratio is not above 1, or the number too low.
    """
    kind = type(randomiser).__name__
    if not isinstance(ratio, Fraction) or type(number) is not int:
        came = f"{type(ratio).__name__} and {type(number).__name__}"
        raise TypeError(f"a {kind} takes a Fraction and an integer, got {came}")
    if ratio <= 1:
        raise ValueError(f"the ratio of a {kind} is above 1, got {ratio}")
    if number < least:
        raise ValueError(f"{name} of a {kind}: at least {least}, got {number}")


def check_values(values: Int64, low: int, high: int) -> None:
    """Refuses an array that holds anything but int64 from ``low`` to ``high`` along one axis.

    Raises:
        TypeError: Of another type.
        ValueError: Of another shape, or out of range; the text names no value.
    """
    if not isinstance(values, np.ndarray) or values.dtype != np.int64:
        raise TypeError(f"values are an array of int64, got {getattr(values, 'dtype', type(values).__name__)}")
    if values.ndim != 1:
        raise ValueError(f"values have one axis, got the shape {values.shape}")
    if len(values) and (int(values.min()) < low or int(values.max()) > high):
        raise ValueError(f"a value is out of range, expected {low} to {high}")


def check_numbers(value: int, output: int, inputs: int, outputs: int) -> None:
    """Refuses a value or an output that a randomiser does not have.

    Raises:
        ValueError: A number is out of range.
    """
    if not NOTHING <= value < inputs or not 0 <= output < outputs:
        raise ValueError(f"value {value} and output {output}, expected -1 to {inputs - 1} and 0 to {outputs - 1}")


def check_counts(counts: Int64, outputs: int) -> None:
    """Refuses counts of reports that are not (R, outputs) int64.

    Raises:
        ValueError: Another type or shape.
    """
    if counts.dtype != np.int64 or counts.ndim != 2 or counts.shape[1] != outputs:
        raise ValueError(f"counts {counts.dtype} {counts.shape}, expected int64 (rows, {outputs})")
