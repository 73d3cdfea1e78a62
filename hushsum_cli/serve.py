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
            "Plan and data": ("plan", "data", "receipts", "receipts_copy", "config_file"),
            "Role and backends": ("role", "processes", "log_kind", "store"),
            "Network": (
                *("listen", "health_listen", "metrics_listen", "metrics_client_ca", "page_listen", "page_hosts"),
                "insecure",
            ),
            "TLS": ("tls_cert", "tls_key", "tls_client_ca"),
            "Authentication": ("authentication", "tokens"),
            "Limits per client": (
                *("client_bytes_rate", "client_bytes_burst", "client_calls_rate", "client_calls_burst"),
                *("client_sessions_max", "client_streams_max"),
            ),
            "Kafka and PostgreSQL": ("kafka_bootstrap", "kafka_prefix"),
            "Signed log entries": ("directory", "gateway_key", "releaser_key", "direct_producers"),
            "Secure sums": ("client_directory",),
            "Limits per client, for randomised reports": ("client_rate", "client_burst"),
            "Shuffler": (
                *("shufflers", "shuffler_key", "upstream", "upstream_ca", "upstream_token"),
                *("upstream_cert", "upstream_key"),
            ),
            "Operation": ("manual", "publish", "keep_releases", "partitions", "retain_verdicts"),
            "Logs and OpenTelemetry": ("log_level", "log_format", "otlp"),
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
    short_help="Run the aggregator.",
    epilog=examples(
        "hushsum serve --plan plan.toml --data DIR",
        "hushsum serve --config aggregator.toml --listen 127.0.0.1:9000",
        "hushsum serve --config cluster.toml --role worker",
        "hushsum serve --config cluster.toml --role worker --check",
        "hushsum serve --role shuffler --upstream HOST:7443 --data DIR --shufflers FILE --shuffler-key FILE",
    ),
)
@click.option("--plan", type=_FILE, help="Compiled plan (plan.json), or a plan.toml to compile at the first start.")
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=str), help="Data directory: log, store and receipts."
)
@click.option("--receipts", type=_FILE, help="Receipts file, preferably on another volume.  [default: in --data]")
@click.option(
    "--receipts-copy",
    metavar="FILE|kafka://HOST:PORT/TOPIC",
    help="Second copy of the receipts, on another machine or volume. With --log kafka a topic, otherwise a file.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Configuration file (TOML); options override it.",
)
@click.option(
    "--role",
    type=click.Choice(["all", "gateway", "worker", "releaser", "shuffler"]),
    help="Role of this process.  [default: all]",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    help="Gateway processes that share --listen, with --role gateway on Linux.  [default: 1]",
)
@click.option("--log", "log_kind", type=click.Choice(["sqlite", "kafka"]), help="Log backend.  [default: sqlite]")
@click.option("--store", type=click.Choice(["sqlite", "postgresql"]), help="Store backend.  [default: sqlite]")
@click.option("--listen", metavar=_HOST_PORT, help="Address of the gRPC service.  [default: 127.0.0.1:7443]")
@click.option("--metrics-listen", metavar=_HOST_PORT, help="Address of /metrics.  [default: 127.0.0.1:7444]")
@click.option(
    "--metrics-client-ca", type=_FILE, help="CA certificates of clients that may read metrics over TLS (PEM)."
)
@click.option("--health-listen", metavar=_HOST_PORT, help="Address of /livez and /readyz.  [default: disabled]")
@click.option("--page", "page_listen", metavar=_HOST_PORT, help="Address of the web page.  [default: disabled]")
@click.option(
    "--page-hosts",
    metavar="NAME,…",
    help="Names that browsers reach the web page by, beside the host of --page; requests to others are refused.",
)
@click.option("--tls-cert", type=_FILE, help="Server certificate, with its chain (PEM).")
@click.option("--tls-key", type=_FILE, help="Private key of --tls-cert (PEM, mode 600).")
@click.option("--tls-client-ca", type=_FILE, help="CA certificates of client certificates (PEM).")
@click.option(
    "--authentication",
    type=click.Choice(["declared", "token", "certificate"]),
    help="Client authentication.  [default: declared, a name without proof, only for clients on this machine]",
)
@click.option("--tokens", type=_FILE, help="File of hashed tokens; see `hushsum admin tokens`.")
@click.option("--client-bytes-rate", type=float, help="Sketch delta bytes per second.  [default: 4194304]")
@click.option("--client-bytes-burst", type=click.IntRange(1), help="Burst size, in bytes.  [default: 268435456]")
@click.option("--client-calls-rate", type=float, help="Other calls per second.  [default: 20]")
@click.option("--client-calls-burst", type=click.IntRange(1), help="Burst size, in calls.  [default: 1000]")
@click.option("--client-sessions-max", type=click.IntRange(1), help="Maximum number of open sessions.  [default: 16]")
@click.option(
    "--client-streams-max", type=click.IntRange(1), help="Maximum number of streams per window.  [default: 1024]"
)
@click.option(
    "--insecure", is_flag=True, default=None, help="Allow unencrypted connections from and to other machines."
)
@click.option("--kafka-bootstrap", metavar=f"{_HOST_PORT},…", help="Kafka bootstrap servers.")
@click.option("--kafka-prefix", metavar="NAME", help="Prefix of topic names.  [default: hushsum]")
@click.option("--directory", type=_FILE, help="Key registry of the services; enables signed log entries.")
@click.option("--gateway-key", type=_FILE, help="Private key of this gateway (PEM).")
@click.option("--releaser-key", type=_FILE, help="Private key of this releaser (PEM).")
@click.option(
    "--direct-producers",
    is_flag=True,
    default=None,
    help="Accept sketch deltas that registered producers write to Kafka.",
)
@click.option("--client-directory", type=_FILE, help="Key registry of the clients, for plans with secure sums.")
@click.option("--client-rate", type=float, help="Reports per second.  [default: 1000]")
@click.option("--client-burst", type=click.IntRange(1), help="Burst size, in reports.  [default: 1000000]")
@click.option("--shufflers", type=_FILE, help="Key registry of the shufflers.")
@click.option("--shuffler-key", type=_FILE, help="Private key of this shuffler (PEM).")
@click.option("--upstream", metavar=_HOST_PORT, help="Address of the gateway that receives the batches.")
@click.option("--upstream-ca", type=_FILE, help="CA certificates of the gateway (PEM).  [default: those of the system]")
@click.option("--upstream-token", type=_FILE, help="File with the bearer token for the gateway.")
@click.option("--upstream-cert", type=_FILE, help="Client certificate for the gateway (PEM).")
@click.option("--upstream-key", type=_FILE, help="Private key of --upstream-cert (PEM).")
@click.option("--manual", is_flag=True, default=None, help="Disable automatic seals and releases; use `hushsum admin`.")
@click.option(
    "--publish",
    metavar="DIR|URL",
    help="Copy each published release to this directory, or to an object store, such as s3://bucket/releases.",
)
@click.option(
    "--keep-releases",
    type=click.IntRange(1),
    metavar="WINDOWS",
    help="Remove releases of older windows than this number of the newest ones.  [default: keep all]",
)
@click.option(
    "--partitions", type=click.IntRange(1), help="Number of log partitions, fixed at the first start.  [default: 1]"
)
@click.option(
    "--retain-verdicts", is_flag=True, default=None, help="Keep the verdict on each sketch delta, for audits."
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Minimum log level.  [default: info]"
)
@click.option("--log-format", type=click.Choice(["console", "json"]), help="Log format.  [default: console]")
@click.option(
    "--otlp",
    is_flag=True,
    default=None,
    help="Export spans, log lines and metrics by OpenTelemetry; configured by OTEL_* variables.",
)
@click.option("--check", is_flag=True, help="Check files, keys, ports, brokers, database and plan; start nothing.")
def serve(*, config_file: Path | None, log_kind: str | None, check: bool, **settings: object) -> None:
    """Run the aggregator for one plan, until SIGTERM or Ctrl-C.

    By default a single process does everything and needs --plan and --data. With --log kafka and --store postgresql
    the work is shared by several processes: gateways accept sketch deltas, workers add them up, and one releaser at a
    time draws the noise.

    The PostgreSQL connection string contains a password and is not an option: set HUSHSUM_POSTGRES_DSN, or postgres_dsn
    in the file of --config, which may contain all other settings too.

    With --check, prints one line per part, "ok" or "failed" with the reason, and exits with status 1 if any failed.
    """
    from aggregator.config import Config
    from aggregator.gateways import run
    from aggregator.logs import write_journal

    if check:
        _check(config_file, {**settings, "log": log_kind})
        return
    config = Config.load(config_file, {**settings, "log": log_kind})
    write_journal(config.log_level, config.log_format)
    run(config)


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
