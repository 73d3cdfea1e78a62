"""The one place that decides whether compiled loops run, and compiles them: speed alone, never bytes.

The environment variable ``HUSHSUM_KERNELS`` is ``auto`` (the default: compiled where numba is installed), ``fast``
(compiled, an error where numba is missing) or ``plain`` (NumPy alone). Both give the same bytes. numba is imported when
the first compiled loop is wanted, never by ``import hushsum``.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

from hushsum.errors import HushsumError

VARIABLE: Final = "HUSHSUM_KERNELS"
_Function = TypeVar("_Function", bound=Callable[..., Any])


class AccelerationError(HushsumError):
    """``HUSHSUM_KERNELS`` holds an unknown word, or asks for compiled loops where numba is not installed."""


def enabled() -> bool:
    """Whether compiled loops run, read from the environment at every call.

    Raises:
        AccelerationError: See the class.
    """
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in {"auto", "fast", "plain"}:
        raise AccelerationError(f"{VARIABLE}: got {wanted!r}, expected auto, fast or plain")
    if wanted == "plain":
        return False
    installed = importlib.util.find_spec("numba") is not None
    if wanted == "fast" and not installed:
        raise AccelerationError(f"{VARIABLE}=fast needs numba: pip install 'hushsum[fast]', or set {VARIABLE}=plain")
    return installed


def compiled(function: _Function) -> _Function:
    """Compiles a loop with numba: without the interpreter's lock, cached on disk where a folder is writable.

    No fastmath: floating-point operations keep their order, which the definition of codes relies on.
    """
    return _decorate(function, inline=False)


def inlined(function: _Function) -> _Function:
    """The same for a short step of such loops, which the compiler merges into its callers."""
    return _decorate(function, inline=True)


def _decorate(function: _Function, *, inline: bool) -> _Function:
    import numba

    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False, "fastmath": False}
    if inline:
        options["forceinline"] = True
    try:
        result: _Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder that it may write its cache to
        result = numba.njit(cache=False, **options)(function)
    return result
