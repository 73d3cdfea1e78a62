"""Lists the licence of every package of requirements.lock, and fails where one is unknown or not allowed.

What a package says of itself counts: its SPDX expression, or else its field `License`, or else its classifiers. It is
read from the environment that the lock was installed into.
"""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LOCK: Final = ROOT / "requirements.lock"

#: Permissive ones, and MPL-2.0, which binds changes of its own files alone.
ALLOWED: Final = frozenset({
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "HPND",
    "ISC", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib",
})  # fmt: skip

#: What is not in a package's metadata, or not as it is meant; and packages that this platform does not install.
STATED: Final = {
    "atheris": "Apache-2.0",  # its repository's LICENSE
    "axe-playwright-python": "MIT",  # its wheel's LICENSE
    "colorama": "BSD-3-Clause",  # on Windows alone
    "docutils": "CC0-1.0 AND BSD-2-Clause",  # of its code; the GPL is of an editor's mode, which the wheel leaves out
    "httpx2-jsfetch": "BSD-3-Clause",  # in browsers alone
}

_BY_CLASSIFIER: Final = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
_BY_TEXT: Final = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
}


def locked(text: str) -> list[tuple[str, str]]:
    """Name and version of each package of a lock."""
    return re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", text, re.MULTILINE)


def licence_of(name: str) -> str:
    """A package's licence as an SPDX expression; what it says itself, or "unknown", where that is none."""
    if name in STATED:
        return STATED[name]
    try:
        said = metadata(name)
    except PackageNotFoundError:
        return "unknown"
    if "License-Expression" in said:
        return said["License-Expression"]
    text = said["License"].strip() if "License" in said else ""
    if (meant := _BY_TEXT.get(text, text)) in ALLOWED:
        return meant
    classifiers = [
        each.rpartition(" :: ")[2] for each in said.get_all("Classifier") or [] if each.startswith("License")
    ]
    named = [_BY_CLASSIFIER.get(each, each) for each in classifiers if each not in {"DFSG approved", "OSI Approved"}]
    return " AND ".join(named) or "unknown"


def is_allowed(expression: str) -> bool:
    """Whether one of the alternatives of an expression has nothing but allowed licences."""
    alternatives = (each.split(" AND ") for each in expression.split(" OR "))
    return any(all(part.strip() in ALLOWED for part in parts) for parts in alternatives)


def listed(lock: Path = LOCK) -> Iterator[tuple[str, str, str]]:
    """Name, version and licence of each package."""
    for name, version in locked(lock.read_text(encoding="utf-8")):
        yield name, version, licence_of(name)


def main() -> None:
    """Prints a line a package."""
    rows = list(listed())
    for name, version, licence in rows:
        print(f"{name:<42} {version:<20} {licence}")
    if wrong := [f"{name}: {licence}" for name, _, licence in rows if not is_allowed(licence)]:
        sys.exit("licences: not allowed by build_tools/licences.py: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
