"""Plans and bundles, written from the section "Plans" of docs/reference/wire.md.

Covered are plans of family `hashed`, kernel `euclidean`, independent draws and mode `central`, with or without classes
and transforms, and with `discrete-laplace` noise and no test of the number of clients.
"""

import hashlib
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from unicodedata import ucd_3_2_0

from .bits import MalformedError, Reader
from .canonical_json import Json, NotCanonicalError, decode, read_real
from .math_portable import float32

LARGEST_BOUND = 2**64
MOST_CANONICAL_BYTES = 4 * 2**20
MOST_BYTES_OF_BUNDLE = 24 * 2**20
MOST_ARRAYS = 64
MOST_NUMBERS = 2**22
MOST_COUNTERS = 2**31
MOST_STEPS = 16
MOST_COORDINATES = 65_536
LONGEST_MS = 3_660 * 86_400_000
HIDDEN = {"Cc", "Cf", "Co", "Zl", "Zp", "Zs"}
ARRAY_LABEL = b"hushsum/v1/parameters\x00"
TIME = "%Y-%m-%dT%H:%M:%SZ"
UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}

KEYS = {
    "": {"format", "name", "privacy", "record", "sketch", "window"},
    "privacy": {
        *("delta", "epsilon", "mechanism", "mode", "participation", "population"),
        *("total_delta", "total_epsilon", "unit"),
    },
    "mechanism": {"count_scale", "name", "scale"},
    "record": {"classes", "dim", "kind", "lower", "names", "units", "upper"},
    "sketch": {"bandwidth", "buckets", "draws", "family", "kernel", "power", "rows", "seed"},
    "window": {"epoch", "lateness", "length", "min_clients", "release", "time"},
}
KEYS_OF_TRANSFORM: dict[str, set[str]] = {
    "scale": {"factor"},
    "clip": {"lower", "upper"},
    "unit-norm": set(),
    "linear": {"matrix"},
}


class PlanError(ValueError):
    """The bytes are not a plan, or not one that these modules cover."""


@dataclass(frozen=True)
class Array:
    """A float32 array that a plan names by its digest."""

    shape: tuple[int, ...]
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    """What an encoder, a decoder and a reader of releases need of a plan."""

    bundle: bytes
    identity: bytes
    classes: tuple[str, ...]
    dim: int
    lower: tuple[Fraction, ...]
    upper: tuple[Fraction, ...]
    bandwidth: Fraction
    power: int
    rows: int
    buckets: int
    seed: int
    transforms: tuple[Mapping[str, Json], ...]
    arrays: Mapping[str, Array]
    unit: str
    records_per_client: int | None
    count_scale: int
    privacy: Mapping[str, Json]

    @property
    def classes_or_one(self) -> int:
        """Return the number of classes, 1 if there are none."""
        return max(1, len(self.classes))


def read_bundle(bundle: bytes) -> Plan:
    """Return the plan of a bundle: its canonical bytes, then the arrays that it names."""
    if len(bundle) > MOST_BYTES_OF_BUNDLE:
        raise PlanError("a bundle of more than 24 MiB")
    canonical, line_break, rest = bundle.partition(b"\n")
    if len(canonical) > MOST_CANONICAL_BYTES:
        raise PlanError("more than 4 MiB of canonical bytes")
    try:
        plan = read_fields(bundle, canonical, read_arrays(rest))
    except (NotCanonicalError, MalformedError) as error:
        raise PlanError(str(error)) from error
    if bool(line_break) != bool(plan.arrays):
        raise PlanError("a line break without arrays")
    return plan


def read_arrays(data: bytes) -> dict[str, Array]:
    """Return the arrays of a bundle by their digests, which must ascend."""
    reader = Reader(data)
    arrays: dict[str, Array] = {}
    while reader.rest():
        encoded = reader.take(reader.integer(8))
        digest = hashlib.sha256(ARRAY_LABEL + encoded).hexdigest()
        if arrays and digest <= max(arrays):
            raise PlanError("arrays that do not ascend by their digests")
        arrays[digest] = read_array(encoded)
    if len(arrays) > MOST_ARRAYS or sum(len(array.numbers) for array in arrays.values()) > MOST_NUMBERS:
        raise PlanError("too many arrays or numbers")
    return arrays


def read_array(encoded: bytes) -> Array:
    """Return one float32 array."""
    reader = Reader(encoded)
    if reader.take(4) != b"HSPA" or reader.integer(1) != 1:
        raise PlanError("not an array of format 1")
    axes = reader.integer(1)
    if axes not in (1, 2):
        raise PlanError("an array with another number of axes than 1 or 2")
    shape = tuple(reader.integer(4) for _ in range(axes))
    count = math.prod(shape)
    if count == 0 or reader.rest() != 4 * count:
        raise PlanError("an array of another length than its axes say")
    numbers = struct.unpack(f"<{count}f", reader.take(4 * count))
    if not all(map(math.isfinite, numbers)):
        raise PlanError("an array with a number that is not finite")
    return Array(shape, numbers)


def read_fields(bundle: bytes, canonical: bytes, arrays: dict[str, Array]) -> Plan:
    """Return the plan of its canonical bytes, all fields verified."""
    document = mapping(decode(canonical))
    if document.get("format") != 1:
        raise PlanError("another format than 1")
    keys(document, KEYS[""])
    if not text(document["name"]):
        raise PlanError("a plan without a name")
    privacy = mapping(document["privacy"])
    unit = choice(privacy.get("unit"), "record", "client")
    keys(privacy, KEYS["privacy"] | ({"records_per_client"} if unit == "client" else set()))
    mechanism = mapping(privacy["mechanism"])
    keys(mechanism, KEYS["mechanism"])
    record = mapping(document["record"])
    keys(record, KEYS["record"])
    sketch = mapping(document["sketch"])
    keys(sketch, KEYS["sketch"] | ({"transforms"} & set(sketch)))
    window = mapping(document["window"])
    keys(window, KEYS["window"])

    choice(privacy["mode"], "central")
    choice(mechanism["name"], "discrete-laplace")
    choice(record["kind"], "vector")
    choice(sketch["family"], "hashed")
    choice(sketch["kernel"], "euclidean")
    choice(sketch["draws"], "independent")
    choice(privacy["participation"], "protected")
    text(privacy["population"])
    check_window(window)

    dim = integer(record["dim"], 1, MOST_COORDINATES)
    lower = reals(record["lower"], dim)
    upper = reals(record["upper"], dim)
    if any(low >= high or rounded(low) >= rounded(high) for low, high in zip(lower, upper, strict=True)):
        raise PlanError("a lower bound that is not below the upper one")
    for names in (record["names"], record["units"]):
        if len(texts(names)) not in (0, dim):
            raise PlanError("another number of names or units than of coordinates")
    if len(set(texts(record["names"]))) < len(texts(record["names"])):
        raise PlanError("names that are not all different")
    classes = texts(record["classes"])
    if len(classes) == 1 or len(classes) > 1024 or len(set(classes)) < len(classes) or "" in classes:
        raise PlanError("classes are none, or 2 to 1,024 different ones")
    bandwidth = read_real(sketch["bandwidth"])
    if not Fraction(1, LARGEST_BOUND) <= bandwidth <= LARGEST_BOUND:
        raise PlanError("a bandwidth out of range")
    rows = integer(sketch["rows"], 1, 2**20)
    buckets = integer(sketch["buckets"], 2, 2**24)
    if max(1, len(classes)) * rows * buckets > MOST_COUNTERS:
        raise PlanError("more than 2^31 counters")
    count_scale = integer(mechanism["count_scale"], 0, 2**33)
    scale = read_real(mechanism["scale"])
    epsilon = read_real(privacy["epsilon"])
    for key in ("delta", "total_delta", "total_epsilon"):
        read_real(privacy[key])
    if not Fraction(1, 2**48) <= scale <= 2**48:
        raise PlanError("a scale of the noise out of range")
    records_per_client = integer(privacy["records_per_client"], 1, 2**31) if unit == "client" else None
    if epsilon < (records_per_client or 1) * (rows + count_scale) / scale:
        raise PlanError("the noise does not support epsilon")

    transforms = tuple(mapping(step) for step in sequence(sketch.get("transforms", [])))
    if len(transforms) not in (range(1, MOST_STEPS + 1) if "transforms" in sketch else (0,)):
        raise PlanError("no transforms, but the key for them; or more than 16")
    for step in transforms:
        keys(step, {"kind"} | KEYS_OF_TRANSFORM[choice(step.get("kind"), *KEYS_OF_TRANSFORM)])
    if {text(step["matrix"]) for step in transforms if "matrix" in step} != set(arrays):
        raise PlanError("the arrays of the bundle are not those that the plan names")
    return Plan(
        bundle=bundle,
        identity=hashlib.sha256(canonical).digest(),
        classes=classes,
        dim=dim,
        lower=lower,
        upper=upper,
        bandwidth=bandwidth,
        power=integer(sketch["power"], 1, 8),
        rows=rows,
        buckets=buckets,
        seed=integer(sketch["seed"], 0, 2**53 - 1),
        transforms=transforms,
        arrays=arrays,
        unit=unit,
        records_per_client=records_per_client,
        count_scale=count_scale,
        privacy=privacy,
    )


def check_window(window: Mapping[str, Json]) -> None:
    """Refuse durations and times that are not in their one form."""
    for key in ("length", "lateness"):
        match = re.fullmatch(r"(0|[1-9][0-9]*)(d|h|ms|m|s)", text(window[key]))
        if not match:
            raise PlanError(f"{key} is not a duration")
        milliseconds = int(match[1]) * UNITS[match[2]]
        if milliseconds > LONGEST_MS:
            raise PlanError(f"{key} is longer than 3,660 days")
        largest = next(unit for unit, size in UNITS.items() if milliseconds % size == 0) if milliseconds else "s"
        if match[2] != largest:
            raise PlanError(f"{key} is not in the largest unit that divides it")
    try:
        epoch = datetime.strptime(text(window["epoch"]), TIME).replace(tzinfo=UTC)
    except ValueError as error:
        raise PlanError("epoch is not a time in whole seconds") from error
    if epoch.strftime(TIME) != window["epoch"] or epoch < datetime(1970, 1, 1, tzinfo=UTC):
        raise PlanError("epoch is not in its one form, or before 1970")
    if window["length"] == "0s":
        raise PlanError("a window without a length")
    integer(window["min_clients"], 0, 0)
    choice(window["release"], "tumbling")
    choice(window["time"], "event")


def mapping(value: Json) -> dict[str, Json]:
    """Return an object, and refuse other values."""
    if not isinstance(value, dict):
        raise PlanError("an object is missing")
    return value


def sequence(value: Json) -> list[Json]:
    """Return an array, and refuse other values."""
    if not isinstance(value, list):
        raise PlanError("an array is missing")
    return value


def keys(value: Mapping[str, Json], expected: set[str]) -> None:
    """Refuse an object with other keys."""
    if set(value) != expected:
        raise PlanError(f"unknown or missing keys: {sorted(set(value) ^ expected)}")


def text(value: Json) -> str:
    """Return a text of at most 128 visible characters, without a space at its ends."""
    if not isinstance(value, str) or len(value) > 128 or value != value.strip(" "):
        raise PlanError(f"{value!r} is not a text of a plan")
    if any(ucd_3_2_0.category(character) in HIDDEN for character in value if character != " "):
        raise PlanError(f"{value!r} has a character that is not visible")
    return value


def texts(value: Json) -> tuple[str, ...]:
    """Return an array of texts."""
    return tuple(text(item) for item in sequence(value))


def choice(value: Json | None, *choices: str) -> str:
    """Return one of these texts."""
    if not isinstance(value, str) or value not in choices:
        raise PlanError(f"{value!r} is none of {choices}")
    return value


def integer(value: Json, least: int, largest: int) -> int:
    """Return an integer within its bounds."""
    if not isinstance(value, int) or not least <= value <= largest:
        raise PlanError(f"{value!r} is not an integer from {least} to {largest}")
    return value


def rounded(value: Fraction) -> float:
    """Return a real number as float32."""
    return float32(float(value))


def reals(value: Json, count: int) -> tuple[Fraction, ...]:
    """Return so many real numbers within +-2^64."""
    numbers = tuple(read_real(item) for item in sequence(value))
    if len(numbers) != count or any(abs(number) > LARGEST_BOUND for number in numbers):
        raise PlanError(f"not {count} real numbers within 2^64")
    return numbers
