"""What a run in secure mode came to, and the promises that it may have broken."""

from dataclasses import dataclass

from simulator.secure.residual import LIMIT
from simulator.summary import Summary


@dataclass(frozen=True)
class SecureSummary(Summary):
    """The numbers of one run in secure mode, after those of every run.

    Attributes:
        dropout_rate: That was asked for.
        cohort_size: N.
        clients_unspent: That vanished before their vector, or found no cohort: nothing of theirs was sent.
        submissions_counted: Vectors in the sum, as the service has told their clients.
        submissions_lost: Spent, and in no sum: told likewise.
        submissions_asked: Of both, clients that had vanished untold: they came back, and asked afterwards, when all
            rounds were over and before the window was sealed.
        submissions_released: Vectors in the sum, by the release.
        stayed_uncounted: Clients that never vanished, and whose records are in no sum.
        noise_variance_ratio: Variance of what is left of the release without the exact sum, over what the plan and the
            number of submissions say.
        noise_variance_z: How far that is from 1, in standard errors; as the next two.
        noise_mean_z: How far the mean of what is left is from 0.
        client_z: The largest part of one client's vector that is left.
        vector_bytes: Of one packed vector, as the plan has it.
        rounds_seconds: From the first client that entered to the last that was told.
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
    def error_ratio(self) -> float | None:
        """The mean error over that of central mode; None where there is none."""
        if self.mean_relative_error is None or not self.central_relative_error:
            return None
        return self.mean_relative_error / self.central_relative_error

    def violations(self) -> list[str]:
        """One sentence for each promise that this run broke, or did not put to the test; empty when all held."""
        counted, lost, spent = self.submissions_counted, self.submissions_lost, self.submissions_spent
        of_all = f"of {self.clients} clients {spent} have spent their window and {self.clients_unspent} have not"
        beyond = f"more than {LIMIT:g} standard errors"
        checks = (
            (
                counted == self.submissions_released,
                f"the release has {self.submissions_released} submissions, and the clients know of {counted}",
            ),
            (counted + lost == spent, f"{spent} submissions are spent, but {counted} are counted and {lost} lost"),
            (spent + self.clients_unspent == self.clients, f"{of_all}: these do not add up"),
            (self.stayed_uncounted == 0, f"{self.stayed_uncounted} clients that never vanished are in no sum"),
            (
                abs(self.noise_variance_z) <= LIMIT,
                f"the noise's variance is {self.noise_variance_ratio:.4f} of what it should be, {beyond} from it",
            ),
            (abs(self.noise_mean_z) <= LIMIT, f"the noise's mean is {beyond} from 0"),
            (
                abs(self.client_z) <= LIMIT,
                f"a client's vector was lost, counted twice or changed: {beyond} of it are left beside the noise",
            ),
            (
                self.clients_dropped > 0 or self.dropout_rate == 0,
                "no client vanished: nothing was put to the test",
            ),
        )
        return [sentence for holds, sentence in checks if not holds]
