"""The table at the end of a run in secure mode."""

from simulator.secure.summary import SecureSummary

Row = tuple[str, str, str]

TITLE = "A sum that nobody saw the parts of"
ALL_WELL = (
    "Nothing was lost, nothing was counted twice, and what the release has beside the exact sum is the plan's noise."
)


def what_happened(summary: SecureSummary) -> list[Row]:
    """Who took part, and what became of each."""
    aborted = "begun again without those that had vanished" if summary.rounds_aborted else ""
    return [
        ("records", f"{summary.records:,}", "in their clients' spools, and nowhere else"),
        ("clients", f"{summary.clients:,}", f"in {summary.cohorts} cohorts of up to {summary.cohort_size}"),
        ("  dropped", f"{summary.clients_dropped}", "vanished at a step of the round, and stayed away"),
        ("submissions spent", f"{summary.submissions_spent}", "masked vectors, on their way for good"),
        ("  counted", f"{summary.submissions_counted}", f"the release has {summary.submissions_released}"),
        ("  lost", f"{summary.submissions_lost}", "spent, and in no sum: cut off before all of it had come"),
        ("  asked afterwards", f"{summary.submissions_asked}", "of both: vanished before they were told"),
        ("  never spent", f"{summary.clients_unspent}", "vanished before their vector, or found no cohort"),
        ("rounds aborted", f"{summary.rounds_aborted}", aborted),
        ("bytes per client", f"{summary.upload_bytes_per_client:,.0f}", "sent: messages and masked vector"),
        ("  of them the vector", f"{summary.vector_bytes:,}", _beside(summary)),
        ("seconds", f"{summary.seconds:.1f}", f"the rounds took {summary.rounds_seconds:.1f}"),
        (
            "release − exact sum",
            _percent(summary.noise_variance_ratio),
            "of the variance that the plan's noise should have",
        ),
        ("  in std errors", f"{abs(summary.noise_variance_z):.1f}", "from 100 %; above 6 something is wrong"),
        ("  its mean", f"{abs(summary.noise_mean_z):.1f}", "standard errors from 0"),
        (
            "  of one client",
            f"{abs(summary.client_z):.1f}",
            f"the most left of any of {summary.clients} vectors, likewise",
        ),
    ]


def beside_central(summary: SecureSummary) -> list[Row]:
    """The same records, had one trusted server added them up and drawn the noise."""
    error, ratio = summary.central_relative_error, summary.error_ratio
    beside = "" if ratio is None else f"this release errs × {ratio:.2f} as much"
    noise = summary.noise_std_error / summary.central_noise_std_error if summary.central_noise_std_error else 1.0
    return [
        ("error, central", "none" if error is None else _percent(error), beside),
        ("noise, central", f"± {summary.central_noise_std_error:,.1f}", f"× {noise:.2f} here: {_why(summary)}"),
    ]


def _beside(summary: SecureSummary) -> str:
    beside = summary.upload_bytes_per_client / summary.vector_bytes - 1 if summary.vector_bytes else 0.0
    return f"packed; keys, shares and signatures {100 * beside:+.1f} %"


def _why(summary: SecureSummary) -> str:
    return "every cohort has the whole noise, and some to spare" if summary.cohorts > 1 else "some noise is to spare"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
