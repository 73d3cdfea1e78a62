"""Generates the Python stubs of `proto/**/*.proto` beside them; `--check` says instead which committed ones are stale.

Messages get `*_pb2.py` and `*_pb2.pyi`, services `*_pb2_grpc.py` and `*_pb2_grpc.pyi`, typed for grpc.aio alone:
nothing in this project speaks gRPC synchronously.
"""

import argparse
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

PROTO_ROOT = Path(__file__).resolve().parent.parent / "proto"
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"
STUB_ENDINGS = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def generate(proto_root: Path, out: Path) -> None:
    """Writes the stubs of every .proto under `proto_root` into `out`, in the same folders.

    Raises:
        SystemExit: the compiler refused a file; it has printed why.
    """
    protos = sorted(path.relative_to(proto_root).as_posix() for path in proto_root.rglob("*.proto"))
    if not protos:
        return
    plugin = Path(sysconfig.get_path("scripts")) / "protoc-gen-mypy"
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={proto_root}",
            f"--proto_path={WELL_KNOWN}",
            f"--plugin=protoc-gen-mypy={plugin}",
            f"--plugin=protoc-gen-mypy_grpc={plugin}_grpc",
            f"--python_out={out}",
            f"--grpc_python_out={out}",
            f"--mypy_out=quiet:{out}",
            f"--mypy_grpc_out=quiet,only_async:{out}",
            *protos,
        ]
    )
    if status != 0:
        sys.exit("stubs: the protobuf compiler refused a file; see above")


def stubs_in(root: Path) -> dict[str, bytes]:
    """The generated files under `root`, by path relative to it."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.name.endswith(STUB_ENDINGS)
    }


def differences(committed: dict[str, bytes], fresh: dict[str, bytes]) -> Iterator[str]:
    """One line for each committed stub that is not what the generator writes today."""
    for name in sorted(committed.keys() | fresh.keys()):
        if name not in committed:
            yield f"proto/{name} is missing"
        elif name not in fresh:
            yield f"proto/{name} belongs to no .proto file"
        elif committed[name] != fresh[name]:
            yield f"proto/{name} is out of date"


def main() -> None:
    """Runs the command; exits 1 when `--check` finds a stale stub."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; say which committed stubs are stale")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        generate(PROTO_ROOT, Path(scratch))
        fresh = stubs_in(Path(scratch))
    stale = list(differences(stubs_in(PROTO_ROOT), fresh))
    if check and stale:
        sys.exit("\n".join(["stubs: run `make stubs` and commit the result:", *(f"  {line}" for line in stale)]))
    if not check:
        for name in stubs_in(PROTO_ROOT).keys() - fresh.keys():
            (PROTO_ROOT / name).unlink()
        for name, content in fresh.items():
            (PROTO_ROOT / name).write_bytes(content)
    print(f"stubs: {len(fresh)} files are up to date")


if __name__ == "__main__":
    main()
