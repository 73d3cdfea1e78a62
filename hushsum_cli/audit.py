"""`hushsum audit`: claimed and audited ε side by side."""

import sys

import click

from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples


@click.command(
    short_help="Try to break the privacy promise: claimed and audited ε side by side.",
    epilog=examples("hushsum audit", "hushsum audit --quick", "hushsum audit --runs 40000 --json > audit.json"),
)
@click.option("--runs", type=click.IntRange(100), help="On each of two neighbouring data sets.  [default: 4000]")
@click.option(
    "--quick", is_flag=True, help="Few runs, and no services: everything exact is still audited, of all modes."
)
@as_json_option
def audit(*, runs: int | None, quick: bool, as_json: bool) -> int:
    """Try to break the privacy promise of this very installation.

    Small plans of every mechanism, unit and relation: the exact ε over all outcomes, from real counters of neighbouring
    data sets and the law of the noise; and a lower limit of ε, wrong with probability 1e-6 at most, from many runs of
    the whole road on both: records, deltas, fold, outcome, release, answers. Of mode secure: the exact ε of the sum
    that a server sees, with as few honest shares of noise as clients let pass. Of mode local: what leaves a device,
    randomised reports and noised sums: exactly for small plans, over all words that decide a report, beside other
    records too; by runs; and by the fit of what is drawn under plans of real sizes. Whether noise ever repeats is
    looked for in two processes and after a fork. Exits with 1 when anything that is found is above what is claimed.
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
