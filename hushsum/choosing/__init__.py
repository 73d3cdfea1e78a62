"""Rows or a bandwidth chosen from private data, only through the ledger.

The best number of rows and the best bandwidth depend on the data, so that looking for them there costs privacy. Here a
declared share of the population's total ε pays for one look: report noisy max over a short public list
(:mod:`hushsum.privacy.noisy_max`). The ledger is charged first; then the winner is drawn, and nothing else leaves.

**Sensitivity.** What is looked at are sums of integers, one a record, from 0 to 4096, which depend on that record alone
(:mod:`hushsum.choosing.utilities`). So a record moves each sum by at most 4096, a client with at most m of them by
4096·m; the utility −|sum − target|, whose target is public, moves by no more.
"""

from collections.abc import Iterable
from typing import Any

from hushsum.choosing.selection import Choice, bandwidth_question, draw, rows_question
from hushsum.entropy import OsEntropy
from hushsum.errors import BudgetError
from hushsum.plan import Plan
from hushsum.privacy.ledger import Ledger

__all__ = ["Choice", "choose_bandwidth", "choose_rows"]


def choose_rows(
    records: Any,
    queries: Any,
    candidates: Iterable[int],
    plan: Plan,
    *,
    share: object,
    ledger: Ledger,
    clients: Iterable[str | bytes | int] | None = None,
) -> Choice:
    """The number of rows whose hashing error is nearest to its noise: R* = f̃·ε/√2 (RACE, Corollary 3.5).

    An answer from R rows errs by at most f̃/√R from hashing and by √2·b/√R from noise of scale b, which grows with R:
    R* makes both equal, f̃ = √2·b. f̃ = Σ √k(x, q) over all records (of all classes), its mean over the queries. For
    pure ε alone: at δ > 0 noise does not grow with R, and as many rows are best as memory and time allow.

    10⁵ records of 20 columns and 20 queries take about 1.2 s, of 3 columns 0.3 s.

    Args:
        records: As :meth:`hushsum.Sketch.add` takes them; a record that cannot be used is dropped alone.
        queries: Public points (m, d) or sets, such as those that will be asked; never taken from the data.
        candidates: 2 to 64 different numbers of rows, public.
        plan: Of the hashed family, with δ = 0.
        share: Of the plan's ``total_epsilon`` that the choice spends: above 0, and so that a release is left.
        ledger: Of the plan's population; charged before anything is drawn.
        clients: For unit ``client``: n ids, one a record, all strings, all bytes or all integers. Of each client the
            first ``records_per_client`` usable records count, in the order given.

    Raises:
        BudgetError: The ledger's limits do not allow the spend, or there is no ledger. Nothing was drawn.
        PlanError: The plan, a candidate or the share is of no use here.
        RecordError: The records, queries or clients cannot be used at all.
    """
    _refuse_no_ledger(ledger)
    return draw(rows_question(records, queries, candidates, plan, share=share, clients=clients), ledger, OsEntropy())


def choose_bandwidth(  # noqa: PLR0913 -- what is asked of whom, and what pays: each by its name
    records: Any,
    queries: Any,
    candidates: Iterable[object],
    plan: Plan,
    *,
    share: object,
    ledger: Ledger,
    clients: Iterable[str | bytes | int] | None = None,
    mass: object = None,
) -> Choice:
    """The bandwidth with which a typical kernel sum stands out of the noise, and is not smoothed more than that.

    A wide kernel blurs what is asked about, a narrow one leaves so few records near a query that noise drowns them. So
    the bandwidth is taken for which the kernel sum, its mean over the queries, is nearest to a public number of
    records: 10 times the standard error that noise gives an answer of this plan (an error of a tenth), unless ``mass``
    says another. Kernel sums grow with the bandwidth, so it is the narrowest with about that signal. The time of
    :func:`choose_rows` goes by once for each candidate.

    Args:
        records: As for :func:`choose_rows`.
        queries: As for :func:`choose_rows`.
        candidates: 2 to 64 different bandwidths, public.
        plan: Of a family with one bandwidth.
        share: As for :func:`choose_rows`.
        ledger: As for :func:`choose_rows`.
        clients: As for :func:`choose_rows`.
        mass: The kernel sum to aim at, in records, above 0, public.

    Raises:
        BudgetError: The ledger's limits do not allow the spend, or there is no ledger. Nothing was drawn.
        PlanError: The plan, a candidate, the share or the mass is of no use here.
        RecordError: The records, queries or clients cannot be used at all.
    """
    _refuse_no_ledger(ledger)
    question = bandwidth_question(records, queries, candidates, plan, share=share, clients=clients, mass=mass)
    return draw(question, ledger, OsEntropy())


def _refuse_no_ledger(ledger: object) -> None:
    if not isinstance(ledger, Ledger):
        raise BudgetError(
            f"ledger: got {type(ledger).__name__}, expected a Ledger: a choice from the data is charged to it"
        )
