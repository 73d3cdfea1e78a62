"""All targets, by name."""

from typing import Final

from tests.fuzz import targets_callers, targets_deltas, targets_plans, targets_releases, targets_secure, targets_wire
from tests.fuzz.target import Target

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for module in (targets_plans, targets_releases, targets_deltas, targets_secure, targets_wire, targets_callers)
    for target in module.TARGETS
}
