"""`hushsum serve`: the aggregator, whole or one role of it."""

import sys
from pathlib import Path
from typing import Any

import click

from hushsum_cli.output import examples

_FILE = click.Path(dir_okay=False, path_type=str)
_HOST_PORT = "HOST:PORT"


class _Grouped(click.Command):
    """A command whose help shows its options under headings."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:  # Any: a command's own
        super().__init__(*arguments, **settings)
        self.headings: dict[str, tuple[str, ...]] = {
            "What is collected, and where it lies": ("plan", "data", "receipts", "config_file"),
            "Which part of the service this is": ("role", "log_kind", "store"),
            "Where it listens": ("listen", "health_listen", "metrics_listen", "metrics_client_ca", "insecure"),
            "TLS": ("tls_cert", "tls_key", "tls_client_ca"),
            "Who may call": ("authentication", "tokens"),
            "What one client may send": (
                *("client_bytes_rate", "client_bytes_burst", "client_calls_rate", "client_calls_burst"),
                *("client_sessions_max", "client_streams_max"),
            ),
            "Kafka and PostgreSQL": ("kafka_bootstrap", "kafka_prefix"),
            "Signed entries": ("directory", "gateway_key", "releaser_key", "direct_producers"),
            "Secure sums": ("client_directory",),
            "Anonymous reports": ("client_rate", "client_burst"),
            "Reports through a shuffler": (
                *("shufflers", "shuffler_key", "upstream", "upstream_ca", "upstream_token"),
                *("upstream_cert", "upstream_key"),
            ),
            "How it works": ("manual", "partitions", "retain_verdicts"),
            "What it writes": ("log_level", "log_format", "traces"),
        }

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every option, under its heading; what has none comes last."""
        left = {each.name: record for each in self.get_params(ctx) if (record := each.get_help_record(ctx))}
        for heading, names in self.headings.items():
            with formatter.section(heading):
                formatter.write_dl([left.pop(name) for name in names if name in left])
        with formatter.section("Other"):
            formatter.write_dl([*left.values()])


@click.command(
    cls=_Grouped,
    short_help="Run the aggregator of one plan.",
    epilog=examples(
        "hushsum serve --plan plan.toml --data DIR",
        "hushsum serve --config aggregator.toml --listen 127.0.0.1:9000",
        "hushsum serve --config cluster.toml --role worker",
        "hushsum serve --config cluster.toml --role worker --check",
        "hushsum serve --role shuffler --upstream HOST:7443 --data DIR --shufflers FILE --shuffler-key FILE",
    ),
)
@click.option("--plan", type=_FILE, help="plan.json, or a plan.toml to be made once.")
@click.option("--data", type=click.Path(file_okay=False, path_type=str), help="Folder of its log, store and receipts.")
@click.option("--receipts", type=_FILE, help="File of its receipts, on another volume.  [default: in --data]")
@click.option("--config", "config_file", type=click.Path(dir_okay=False, path_type=Path), help="TOML file of settings.")
@click.option(
    "--role",
    type=click.Choice(["all", "gateway", "worker", "releaser", "shuffler"]),
    help="What this process does. [default: all]",
)
@click.option("--log", "log_kind", type=click.Choice(["sqlite", "kafka"]), help="[default: sqlite, a file]")
@click.option("--store", type=click.Choice(["sqlite", "postgresql"]), help="[default: sqlite, a file]")
@click.option("--listen", metavar=_HOST_PORT, help="Where clients connect.  [default: 127.0.0.1:7443]")
@click.option("--metrics-listen", metavar=_HOST_PORT, help="Where /metrics answers.  [default: 127.0.0.1:7444]")
@click.option(
    "--metrics-client-ca", type=_FILE, help="Who may ask for metrics over TLS: those of this authority (PEM)."
)
@click.option("--health-listen", metavar=_HOST_PORT, help="Where /livez and /readyz answer.  [default: nowhere]")
@click.option("--tls-cert", type=_FILE, help="The certificate that clients see, with its chain (PEM).")
@click.option("--tls-key", type=_FILE, help="Its private key (PEM, mode 600).")
@click.option("--tls-client-ca", type=_FILE, help="Ask clients for a certificate of this authority (PEM).")
@click.option(
    "--authentication",
    type=click.Choice(["declared", "token", "certificate"]),
    help="What proves who calls. [default: declared, which is a name, of callers on this machine]",
)
@click.option("--tokens", type=_FILE, help="The file of hashed tokens, which `hushsum admin tokens` writes.")
@click.option("--client-bytes-rate", type=float, help="Bytes of deltas a second.  [default: 4194304]")
@click.option("--client-bytes-burst", type=click.IntRange(1), help="So many it may be ahead.  [default: 268435456]")
@click.option("--client-calls-rate", type=float, help="Other calls a second.  [default: 20]")
@click.option("--client-calls-burst", type=click.IntRange(1), help="So many it may be ahead.  [default: 1000]")
@click.option("--client-sessions-max", type=click.IntRange(1), help="Open sessions.  [default: 16]")
@click.option("--client-streams-max", type=click.IntRange(1), help="Streams in one window.  [default: 1024]")
@click.option("--insecure", is_flag=True, default=None, help="Allow plaintext off this machine.")
@click.option("--kafka-bootstrap", metavar=f"{_HOST_PORT},…", help="Brokers to ask first.")
@click.option("--kafka-prefix", metavar="NAME", help="What the names of topics begin with.  [default: hushsum]")
@click.option("--directory", type=_FILE, help="Whose key is which; with it all entries are signed.")
@click.option("--gateway-key", type=_FILE, help="This gateway's private key.")
@click.option("--releaser-key", type=_FILE, help="This releaser's private key.")
@click.option("--direct-producers", is_flag=True, default=None, help="Let services of the directory write to Kafka.")
@click.option("--client-directory", type=_FILE, help="Keys of the clients: the directory that a secure plan names.")
@click.option("--client-rate", type=float, help="Reports a second of one client.  [default: 1000]")
@click.option("--client-burst", type=click.IntRange(1), help="So many it may be ahead of that.  [default: 1000000]")
@click.option("--shufflers", type=_FILE, help="Keys of the shufflers: a directory.")
@click.option("--shuffler-key", type=_FILE, help="This shuffler's private key.")
@click.option("--upstream", metavar=_HOST_PORT, help="Where this shuffler's batches go: a gateway.")
@click.option("--upstream-ca", type=_FILE, help="Whose signature that gateway's certificate bears (PEM).")
@click.option("--upstream-token", type=_FILE, help="The file of the token that is shown there.")
@click.option("--upstream-cert", type=_FILE, help="The certificate that is shown there (PEM).")
@click.option("--upstream-key", type=_FILE, help="Its private key (PEM).")
@click.option("--manual", is_flag=True, default=None, help="Seal and release only through `hushsum admin`.")
@click.option("--partitions", type=click.IntRange(1), help="Of the log, fixed at the first start.  [default: 1]")
@click.option("--retain-verdicts", is_flag=True, default=None, help="Keep what became of each delta, for audits.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[default: info]")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="[default: console]")
@click.option("--traces", is_flag=True, default=None, help="Send spans where OTEL_EXPORTER_OTLP_ENDPOINT says.")
@click.option("--check", is_flag=True, help="Try files, keys, ports, brokers, database and plan; start nothing.")
def serve(*, config_file: Path | None, log_kind: str | None, check: bool, **settings: object) -> None:
    """Run the aggregator of one plan, until SIGTERM or Ctrl-C.

    By default one process does everything, and needs a plan and a folder. Several processes share the work with --log
    kafka and --store postgresql: gateways take deltas, workers add them up, one releaser at a time draws the noise.

    The address of the database holds a password and is never an option: it is read from the environment,
    HUSHSUM_POSTGRES_DSN, or from the file of --config, which may hold every other setting, too.

    With --check it prints one line for each part, "ok" or "failed" and why, and ends with 1 if any failed.
    """
    import asyncio

    from aggregator.app import serve as run
    from aggregator.config import Config
    from aggregator.logs import write_journal

    if check:
        _check(config_file, {**settings, "log": log_kind})
        return
    config = Config.load(config_file, {**settings, "log": log_kind})
    write_journal(config.log_level, config.log_format)
    asyncio.run(run(config))


def _check(config_file: Path | None, settings: dict[str, object]) -> None:
    import asyncio

    from aggregator.check import check
    from aggregator.config import Config
    from aggregator.errors import ConfigError
    from aggregator.logs import write_journal
    from aggregator.runtime import SystemRuntime

    failed = []

    def report(what: str, why: str) -> None:
        click.echo(f"{what}: failed: {why}" if why else f"{what}: ok")
        if why:
            failed.append(what)

    try:
        config = Config.load(config_file, settings)
    except ConfigError as error:
        report("settings", str(error))
    else:
        report("settings", "")
        write_journal(config.log_level, config.log_format)
        asyncio.run(check(config, SystemRuntime(), report))
    if failed:
        sys.exit(1)
