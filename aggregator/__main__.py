"""`python -m aggregator`: the service alone, without the rest of the command line."""

import argparse
import sys
import typing
from pathlib import Path

from aggregator.config import Config
from aggregator.gateways import run
from aggregator.logs import write_journal
from hushsum.errors import HushsumError


def main() -> int:
    """Runs the service; returns what the process exits with."""
    parser = argparse.ArgumentParser(prog="python -m aggregator", description="Run the aggregator for one plan.")
    parser.add_argument("--config", type=Path, help="configuration file (TOML)")
    for name, field in Config.model_fields.items():
        if name == "postgres_dsn":
            continue  # it holds a password, which every user of a machine could read in a command line
        option = "--" + name.replace("_", "-")
        if field.annotation is bool:
            parser.add_argument(option, action="store_true", default=None)
        else:
            parser.add_argument(option, type=_value_of(field.annotation))
    given = vars(parser.parse_args())
    try:
        config = Config.load(given.pop("config"), given)
        write_journal(config.log_level, config.log_format)
        run(config)
    except HushsumError as error:
        sys.stderr.write(f"aggregator: {error}\n")
        return 1
    return 0


def _value_of(annotation: object) -> type:
    if annotation in {int, float}:
        return int if annotation is int else float
    return next((kind for part in typing.get_args(annotation) if (kind := _value_of(part)) is not str), str)


if __name__ == "__main__":
    sys.exit(main())
