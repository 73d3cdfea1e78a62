"""`hushsum serve`: the aggregator."""

from pathlib import Path

import click

from hushsum_cli.output import examples


@click.command(
    short_help="Run the aggregator of one plan.",
    epilog=examples(
        "hushsum serve --plan plan.toml --data DIR", "hushsum serve --config aggregator.toml --listen 127.0.0.1:9000"
    ),
)
@click.option(
    "--plan", type=click.Path(dir_okay=False, path_type=str), help="plan.json, or a plan.toml to be made once."
)
@click.option("--data", type=click.Path(file_okay=False, path_type=str), help="Folder of its log, store and receipts.")
@click.option("--config", "config_file", type=click.Path(dir_okay=False, path_type=Path), help="TOML file of settings.")
@click.option("--listen", metavar="HOST:PORT", help="Where clients connect.  [default: 127.0.0.1:7443]")
@click.option("--metrics-listen", metavar="HOST:PORT", help="Where /metrics answers.  [default: 127.0.0.1:7444]")
@click.option("--manual", is_flag=True, default=None, help="Seal and release only through `hushsum admin`.")
@click.option("--insecure", is_flag=True, default=None, help="Allow plaintext off this machine.")
@click.option("--partitions", type=click.IntRange(1), help="Of the log, fixed at the first start.  [default: 1]")
@click.option("--retain-verdicts", is_flag=True, default=None, help="Keep what became of each delta, for audits.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[default: info]")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="[default: console]")
def serve(*, config_file: Path | None, **settings: object) -> None:
    """Run the aggregator of one plan, until SIGTERM or Ctrl-C.

    It needs a plan and a folder, here or in the file of --config, which may hold every other setting, too.
    """
    import asyncio

    from aggregator.config import Config
    from aggregator.journal import write_journal
    from aggregator.service import serve as run

    config = Config.load(config_file, settings)
    write_journal(config.log_level, config.log_format)
    asyncio.run(run(config))
