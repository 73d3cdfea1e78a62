"""Makes the database's password, once: for the server as it is, for its users as libpq's password file."""

import os
import secrets
from pathlib import Path

FOLDER = Path("/database")  # a volume that the server and its users alone mount


def write(name: str, text: str, mode: int) -> None:
    """A file that is there whole, or not at all."""
    unfinished = FOLDER / f".{name}"
    unfinished.write_text(text, encoding="ascii")
    unfinished.chmod(mode)
    unfinished.replace(FOLDER / name)


def main() -> None:
    """Does nothing where both files are there."""
    password, passfile = FOLDER / "password", FOLDER / "pgpass"
    if not password.exists():
        write("password", secrets.token_urlsafe(32), 0o444)  # the server is another user
    if not passfile.exists():
        write("pgpass", f"*:*:*:hushsum:{password.read_text(encoding='ascii')}\n", 0o600)
    FOLDER.chmod(0o755)
    print(f"password: stored in the volume of the database, for user hushsum (this process is {os.getuid()})")


if __name__ == "__main__":
    main()
