"""What is guessed of a window, from what is public."""

import math
from dataclasses import dataclass
from typing import Self

from hushsum.plan import Plan
from hushsum.privacy.cohort import Cohort


@dataclass(frozen=True)
class Guesses:
    """What was guessed of a window: with classes, of one of them.

    Attributes:
        records: n.
        density: k̄, the mean kernel at a query.
        clients: From whom the records come.
    """

    records: int
    density: float
    clients: int

    @property
    def kernel_sum(self) -> float:
        """n·k̄: a typical answer, in records."""
        return self.records * self.density

    @classmethod
    def checked(cls, plan: Plan, records: int, density: float, clients: int | None) -> Self:
        """Guesses that do not contradict the plan.

        Args:
            plan: Of which they are.
            records: n.
            density: k̄.
            clients: None: as many as fill their bound, else one a record.

        Raises:
            ValueError: One is out of range, or contradicts the plan.
        """
        if records < 1:
            raise ValueError(f"records: got {records}, expected a number from 1")
        if not 0.0 < density < 1.0:
            raise ValueError(f"density: got {density:g}, expected a mean kernel above 0 and below 1")
        most = plan.privacy.records_per_client
        if clients is None:
            clients = math.ceil(records / (most or 1))
        if not 1 <= clients <= records:
            raise ValueError(f"clients: got {clients}, expected a number from 1 to that of records, {records}")
        if most is not None and records > most * clients:
            raise ValueError(
                f"records: got {records}, but {clients} clients contribute at most "
                f"privacy.records_per_client = {most} each, {most * clients} in all"
            )
        return cls(records, density, clients)

    def noised(self, plan: Plan) -> int:
        """How many clients add all of the plan's noise to what they send: all of them in mode ``local``, else 1."""
        return 1 if plan.privacy.local is None else self.clients

    def cohorts(self, cohort: Cohort) -> int:
        """Into how many cohorts of a secure sum the clients fall at one gateway, at least one."""
        if cohort.pool:  # none is drawn from fewer
            return max(1, (self.clients - cohort.pool) // cohort.size + 1)
        return -(-self.clients // cohort.size)

    def in_cohorts(self, cohort: Cohort) -> int:
        """How many of the clients are in one of them: with a pool, fewer than it are left over."""
        return min(self.clients, self.cohorts(cohort) * cohort.size)
