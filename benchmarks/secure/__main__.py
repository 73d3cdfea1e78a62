"""Runs the benchmarks of the secure sum, prints a table of each and writes ``benchmarks/results/secure_*.json``.

Everything stands beside the raw cipher, or beside Flower's public helper functions, in the same run. Flower is no part
of the environment: ``build_tools/peers.py`` fetches it into a folder of its own, and where it cannot, its figures are
left out.
"""

from benchmarks.command import Room
from benchmarks.secure import cohorts, masking, noise_shares, pools, rounds, sharing
from build_tools import peers

SUBJECTS = {
    "cohorts": cohorts,
    "masking": masking,
    "sharing": sharing,
    "noise_shares": noise_shares,
    "rounds": rounds,
    "pools": pools,
}


def main() -> None:
    """The command line."""
    if not peers.is_ready() and (wrong := peers.fetch()) is not None:
        print(f"\nFlower is left out: {wrong}")
    Room("python -m benchmarks.secure", __doc__, SUBJECTS, prefix="secure_").main()


if __name__ == "__main__":
    main()
