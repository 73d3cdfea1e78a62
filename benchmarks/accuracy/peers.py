"""Figures of others that the page stands beside, with where they come from."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Peer:
    """One line of figures.

    Attributes:
        data: The data set.
        label: Whose.
        errors: By ε, in the data set's metric.
    """

    data: str
    label: str
    errors: dict[float, float]


#: RACE with the noise that its sensitivity asks for (the authors' own code adds about n times less), measured with a
#: prototype, best of R = 100, 300 and 1000. LSQ: its authors' code, with the exact number of records in the divisor.
PEERS: Final = (
    Peer("skin", "peer: RACE with honest noise", {0.01: 0.19, 0.1: 0.055, 1.0: 0.019}),
    Peer("taxi", "peer: LSQ-RFF, its code", {0.02: 0.0204, 0.05: 0.0118, 0.2: 0.0073}),
    Peer("taxi", "peer: LSQ-FGT, its code", {0.02: 0.0083, 0.05: 0.0042, 0.2: 0.0012}),
)
