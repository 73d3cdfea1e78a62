"""Failures of secure sums beside other spends: how a population's δ is divided is fixed before any output is seen.

zCDP is converted at a δ, and a failure takes some of the same δ. If outputs could choose how much goes to either, then
both bounds together could pass it. So the first release says for all of the population, for no output chose that one:
no failures ever; or failures beside zCDP, for which a fixed part of δ is kept; or failures and no zCDP at all.
"""

from hushsum.errors import BudgetError
from hushsum.privacy.relation import NO_LOSS, Loss


def refuse_mixed(whose: str, spent: Loss | None, asked: Loss) -> None:
    """Refuses a spend that would change how δ is divided.

    Args:
        whose: The population, as sentences name it.
        spent: All its spends together; None where they have no total.
        asked: The new one.

    Raises:
        BudgetError: The first failure after other spends, or zCDP after pure secure sums.
    """
    if spent is None or spent == NO_LOSS:
        return
    if asked.failure and not spent.failure:
        raise BudgetError(
            f"{whose} began without secure sums: how its delta is divided is fixed by its first release, and nothing "
            "of it is kept for their failures; give them a population of their own"
        )
    if asked.rho and spent.failure and not spent.rho:
        raise BudgetError(
            f"{whose} began with pure secure sums: all of its delta is kept for their failures; a release with a delta "
            "above that needs another population"
        )
