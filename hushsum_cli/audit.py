"""`hushsum audit`: claimed and audited ε side by side."""

import sys

import click

from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples


@click.command(
    short_help="Compare claimed ε with exact and measured ε of this installation.",
    epilog=examples("hushsum audit", "hushsum audit --quick", "hushsum audit --runs 40000 --json > audit.json"),
)
@click.option("--runs", type=click.IntRange(100), help="Runs on each of two neighbouring data sets.  [default: 4000]")
@click.option("--quick", is_flag=True, help="Fewer runs and no services; all exact audits are kept.")
@as_json_option
def audit(*, runs: int | None, quick: bool, as_json: bool) -> int:
    """Audit the privacy guarantees of this installation.

    For small plans of every mechanism, unit and relation, computes the exact ε over all outcomes from the counters of
    neighbouring data sets and the noise distribution, and measures a lower bound on ε (confidence 1 - 1e-6) from
    repeated end-to-end runs: records, deltas, fold, outcome, release, answers.

    Mode secure: the exact ε of a cohort sum with the minimum number of honest noise shares. Mode local: the exact ε of
    randomised reports and noised sums for small plans, measured ε, and goodness of fit for plans of realistic size.
    Reuse of noise is tested across two processes and after a fork.

    Exits with status 1 if an audited ε exceeds the claimed ε.
    """
    from hushsum_simulator.audit.report import print_report
    from hushsum_simulator.audit.runner import QUICK_RUNS, RUNS, AuditSettings
    from hushsum_simulator.audit.runner import audit as run
    from hushsum_simulator.progress import Bars, Quiet

    settings = AuditSettings(runs or (QUICK_RUNS if quick else RUNS), services=not quick)
    if sys.stderr.isatty():
        with Bars() as bars:
            report = run(settings, bars)
    else:
        report = run(settings, Quiet())
    if as_json:
        click.echo(report.to_json(), nl=False)
    else:
        print_report(report)
    violations = report.violations()
    for sentence in violations:
        click.echo(f"hushsum: {sentence}", err=True)
    return 1 if violations else 0
