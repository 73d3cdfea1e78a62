"""The numbers of a run in secure mode."""

from collections.abc import Iterable
from dataclasses import dataclass

from typing_extensions import override

from hushsum_simulator.demo.evaluation import Residual
from hushsum_simulator.demo.summary import (
    NOISE_ALONE,
    Check,
    Row,
    Summary,
    error_ratio,
    percent,
    residual_checks,
    residual_rows,
)


@dataclass(frozen=True, kw_only=True)
class SecureSummary(Summary):
    """The numbers of one run in secure mode, after those of every run.

    Attributes:
        dropout_rate: As asked for.
        cohort_size: N.
        clients_unspent: Clients that vanished before their vector, or found no cohort: they sent no vector.
        submissions_counted: Vectors in the sum, by the answers to their clients.
        submissions_lost: Vectors that were spent and are in no sum, by the same answers.
        submissions_asked: Of both, clients that had vanished without an answer: they came back and asked when all
            rounds were over, before the window was sealed.
        submissions_released: Vectors in the sum, by the release.
        stayed_uncounted: Clients that never vanished, and whose records are in no sum.
        noise_variance_ratio: See :class:`~hushsum_simulator.demo.evaluation.Residual`, as of the next three.
        vector_bytes: Of one packed vector, by the plan.
        rounds_seconds: From the first client that took part to the last answer.
        central_relative_error: The same records, released by one trusted server at the same ε and δ.
        central_noise_std_error: The part of its answers' standard error that is noise, in records.
    """

    dropout_rate: float = 0.0
    cohort_size: int = 0
    clients_unspent: int = 0
    submissions_counted: int = 0
    submissions_lost: int = 0
    submissions_asked: int = 0
    submissions_released: int = 0
    stayed_uncounted: int = 0
    noise_variance_ratio: float = 1.0
    noise_variance_z: float = 0.0
    noise_mean_z: float = 0.0
    client_z: float = 0.0
    vector_bytes: int = 0
    rounds_seconds: float = 0.0
    central_relative_error: float | None = None
    central_noise_std_error: float = 0.0

    @property
    @override
    def title(self) -> str:
        return "A sum that nobody saw the parts of"

    @property
    @override
    def all_well(self) -> str:
        return NOISE_ALONE

    @property
    def residual(self) -> Residual:
        return Residual(self.noise_variance_ratio, self.noise_variance_z, self.noise_mean_z, self.client_z)

    @override
    def checks(self) -> Iterable[Check]:
        counted, lost, spent = self.submissions_counted, self.submissions_lost, self.submissions_spent
        of_all = f"of {self.clients} clients {spent} have spent their window and {self.clients_unspent} have not"
        return (
            (
                counted == self.submissions_released,
                f"the release has {self.submissions_released} submissions, and the clients know of {counted}",
            ),
            (counted + lost == spent, f"{spent} submissions are spent, but {counted} are counted and {lost} lost"),
            (spent + self.clients_unspent == self.clients, f"{of_all}: these do not add up"),
            (self.stayed_uncounted == 0, f"{self.stayed_uncounted} clients that never vanished are in no sum"),
            *residual_checks(self.residual, "vector"),
            (self.clients_dropped > 0 or self.dropout_rate == 0, "no client vanished: nothing was put to the test"),
        )

    @override
    def rows(self) -> Iterable[Row]:
        aborted = "begun again without those that had vanished" if self.rounds_aborted else ""
        beside = self.upload_bytes_per_client / self.vector_bytes - 1 if self.vector_bytes else 0.0
        packed = f"packed; keys, shares and signatures {100 * beside:+.1f} %"
        return [
            ("records", f"{self.records:,}", "in their clients' spools, and nowhere else"),
            ("clients", f"{self.clients:,}", f"in {self.cohorts} cohorts of up to {self.cohort_size}"),
            ("  dropped", f"{self.clients_dropped}", "vanished at a step of the round, and stayed away"),
            ("submissions spent", f"{self.submissions_spent}", "masked vectors, on their way for good"),
            ("  counted", f"{self.submissions_counted}", f"the release has {self.submissions_released}"),
            ("  lost", f"{self.submissions_lost}", "spent, and in no sum: cut off before all of it had come"),
            ("  asked afterwards", f"{self.submissions_asked}", "of both: vanished before they were told"),
            ("  never spent", f"{self.clients_unspent}", "vanished before their vector, or found no cohort"),
            ("rounds aborted", f"{self.rounds_aborted}", aborted),
            ("bytes per client", f"{self.upload_bytes_per_client:,.0f}", "sent: messages and masked vector"),
            ("  of them the vector", f"{self.vector_bytes:,}", packed),
            ("seconds", f"{self.seconds:.1f}", f"the rounds took {self.rounds_seconds:.1f}"),
            *residual_rows(self.residual, "the plan's noise", f"{self.clients} vectors"),
            *self.answer_rows(),
            *self._central_rows(),
            *self.price_rows(),
            *self.ledger_rows(),
        ]

    def _central_rows(self) -> list[Row]:
        """The same records, had one trusted server summed them and drawn the noise."""
        ratio = error_ratio(self, self.central_relative_error)
        beside = "" if ratio is None else f"this release errs × {ratio:.2f} as much"
        noise = self.noise_std_error / self.central_noise_std_error if self.central_noise_std_error else 1.0
        why = "every cohort has the whole noise, and some to spare" if self.cohorts > 1 else "some noise is to spare"
        return [
            ("error, central", percent(self.central_relative_error), beside),
            ("noise, central", f"± {self.central_noise_std_error:,.1f}", f"× {noise:.2f} here: {why}"),
        ]
