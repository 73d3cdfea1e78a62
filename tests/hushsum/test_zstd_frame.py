import os
import re
import subprocess
import sys

import pytest

from hushsum.errors import ReleaseError
from hushsum.zstd_frame import compress, decompress, zstd

MAGIC = b"\x28\xb5\x2f\xfd"


def frame_of(window: int, claimed: int, *blocks: bytes) -> bytes:
    """A frame of a window of 2^window bytes that says to hold ``claimed`` bytes."""
    return MAGIC + bytes([0xC0, (window - 10) << 3]) + claimed.to_bytes(8, "little") + b"".join(blocks)


def block(data: bytes, *, last: bool, repeated: int = 0) -> bytes:
    """Of these bytes, or of one byte that is repeated."""
    kind, size = (1, repeated) if repeated else (0, len(data))
    return (size << 3 | kind << 1 | last).to_bytes(3, "little") + data


@pytest.mark.parametrize("data", (b"", b"x", bytes(1_000_000), os.urandom(300_000)), ids=len)
def test_what_was_compressed_is_read_again(data: bytes) -> None:
    assert decompress(compress(data), len(data)) == data


@pytest.mark.parametrize("level", (1, 19, 22))
def test_frames_of_other_levels_are_read(level: int) -> None:
    data = os.urandom(1000) * 300
    assert decompress(zstd.compress(data, level=level), len(data)) == data


@pytest.mark.parametrize(
    "frame",
    (
        b"",
        MAGIC,
        b"abc" * 20,
        compress(bytes(8))[:-1],
        compress(bytes(8)) + b"\0",
        compress(bytes(8)) * 2,
        compress(bytes(7)),
        compress(bytes(9)),
        zstd.compress(bytes(8), options={zstd.CompressionParameter.content_size_flag: False}),
        frame_of(20, 8, block(b"a", last=True, repeated=1 << 17)),
        frame_of(20, 8, *[block(b"a", last=False, repeated=1 << 17)] * 1000),
        frame_of(20, 8, block(b"abcd", last=True)),
        b"\x50\x2a\x4d\x18\x04\0\0\0abcd",
        b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + compress(bytes(8)),
    ),
)
def test_anything_but_one_whole_frame_of_the_size_is_refused(frame: bytes) -> None:
    with pytest.raises(ReleaseError):
        decompress(frame, 8)


@pytest.mark.skipif(sys.platform != "linux", reason="reads its memory from /proc")
def test_a_frame_takes_no_more_memory_than_it_says_to_hold_whatever_its_window() -> None:
    frames = [
        frame_of(31, 8, block(b"abcdefgh", last=True)),
        frame_of(31, 8, *[block(b"a", last=False, repeated=1 << 17)] * 20_000),
        compress(bytes(1 << 31)),
    ]
    code = (
        "import resource, sys\n"
        "from hushsum.errors import ReleaseError\n"
        "from hushsum.zstd_frame import decompress\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)\n"
        "for frame in sys.stdin.read().split():\n"
        "    try: print(decompress(bytes.fromhex(frame), 8))\n"
        "    except ReleaseError as error: print(error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        input="\n".join(frame.hex() for frame in frames), capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    read, *refused = ended.stdout.splitlines()
    assert (read, len(refused)) == ("b'abcdefgh'", 2)
    assert all(re.search("buffer is too small|do not unpack to 8 bytes", each) for each in refused)
