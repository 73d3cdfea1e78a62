"""Zstandard frames that say how many bytes they hold: written, and read within that bound."""

import sys
from typing import Final

from hushsum.errors import ReleaseError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["compress", "decompress", "zstd"]

_LEVEL: Final = 3
_WINDOW_LOG_MAX: Final = zstd.DecompressionParameter.window_log_max


def compress(data: bytes) -> bytes:
    """One frame of the data, which says their size."""
    return zstd.compress(data, level=_LEVEL)


def decompress(frame: bytes, size: int) -> bytes:
    """The ``size`` bytes that the frame holds.

    It reads frames of any window: the window takes no more memory than the frame says to hold.

    Raises:
        ReleaseError: Not one whole frame that says to hold, and holds, so many bytes, or something follows it.
    """
    try:
        if zstd.get_frame_info(frame).decompressed_size != size:
            raise ReleaseError(f"counters that do not unpack to {size} bytes")
        decompressor = zstd.ZstdDecompressor(options={_WINDOW_LOG_MAX: _WINDOW_LOG_MAX.bounds()[1]})
        data = decompressor.decompress(frame, max_length=size + 1)  # one more shows a frame that holds more
    except zstd.ZstdError as error:
        raise ReleaseError(f"not readable by this version: {error}") from error
    if len(data) != size or not decompressor.eof or decompressor.unused_data:
        raise ReleaseError(f"counters that do not unpack to {size} bytes")
    return data
