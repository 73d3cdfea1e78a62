"""The command `hushsum`, also as `python -m hushsum_cli`."""

import sys
from typing import NoReturn

from hushsum_cli.extras import install_hint


def main() -> NoReturn:
    """Runs the command line; where the extra `cli` is not installed, it says so in one line."""
    try:
        from hushsum_cli.main import main as run
    except ModuleNotFoundError as error:
        missing = install_hint(error)
        if missing is None:
            raise
        sys.stderr.write(f"hushsum: {missing}\n")
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
