"""All targets, by name."""

from typing import Final

from tests.fuzz import targets_deltas, targets_plans, targets_secure, targets_wire
from tests.fuzz.target import Target

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for module in (targets_plans, targets_deltas, targets_secure, targets_wire)
    for target in module.TARGETS
}
