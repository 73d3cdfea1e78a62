"""Writes the frozen messages of the log, once: ``python -m tests.vectors.generate_log_messages``.

One file, beside those of :mod:`tests.vectors.generate`; it too refuses to write again.
"""

import json

from hushsum.signing import Directory, DirectoryKey, Role, SigningKey
from hushsum_proto.batches import Batch, signed_batch
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.convert_batches import batch_to_bytes
from hushsum_proto.entries import DeltaEntry, LogEntry, SealEntry
from tests.vectors.generate import FOLDER

PATH = FOLDER / "log_messages" / "messages.json"
PLAN_ID = bytes(range(32))
PARTITION = 5
SEEDS = {role: bytes([number] * 32) for number, role in enumerate(Role, 1)}
DELTAS = (DeltaEntry("alice", b"a delta", 1_700_000_000_000), DeltaEntry("é", b"", 0))
SEALS = (SealEntry(PLAN_ID, -3, 1_700_000_000_001),)


def message(role: Role, entries: tuple[LogEntry, ...], partition: int = PARTITION) -> bytes:
    """A message, signed with the key of a role."""
    data = [entry_to_bytes(entry) for entry in entries]
    key = SigningKey(SEEDS[role])
    return batch_to_bytes(signed_batch(data, plan_id=PLAN_ID, partition=partition, key_id=role.value, key=key))


def main() -> None:
    """Writes the file."""
    keys = {role: SigningKey(seed).verify_key for role, seed in SEEDS.items()}
    directory = Directory({role.value: DirectoryKey(role.value, role, key) for role, key in keys.items()})
    gateway = message(Role.GATEWAY, DELTAS)
    written = {
        "plan_id": PLAN_ID.hex(),
        "partition": PARTITION,
        "keys": {role.value: key.hex for role, key in keys.items()},
        "directory_digest": directory.digest().hex(),
        "entries": {
            "deltas": [entry_to_bytes(entry).hex() for entry in DELTAS],
            "seals": [entry_to_bytes(entry).hex() for entry in SEALS],
        },
        "plain": batch_to_bytes(Batch(tuple(entry_to_bytes(entry) for entry in DELTAS))).hex(),
        "gateway": gateway.hex(),
        "producer": message(Role.PRODUCER, DELTAS).hex(),
        "releaser": message(Role.RELEASER, SEALS).hex(),
        "unsigned": [
            message(Role.GATEWAY, DELTAS, PARTITION + 1).hex(),
            (gateway[:-1] + bytes([gateway[-1] ^ 1])).hex(),
        ],
    }
    PATH.parent.mkdir(exist_ok=True)
    with PATH.open("x", encoding="utf-8") as file:
        file.write(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
