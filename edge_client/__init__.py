"""The device SDK of Hushsum: hashes records where they are, and sends what is safe to add up.

>>> from edge_client import EdgeClient, Policy
>>> async with EdgeClient("localhost:7443", spool="spool.db", policy=Policy(max_epsilon=1.0)) as client:
...     await client.add(records)
...     await client.flush()
"""

from edge_client.client import EdgeClient
from edge_client.config import Config
from edge_client.errors import (
    AbsentWarning,
    AccountError,
    AuthenticationError,
    ClientStateError,
    ClockWarning,
    EdgeError,
    EdgeWarning,
    EventTimeError,
    FlushTimeoutError,
    NoPartError,
    NotCountedError,
    NotCountedWarning,
    PlanChangedError,
    PolicyError,
    SessionRefusedError,
    SettingsError,
    SpoolError,
    SpoolFullError,
    SpoolInUseError,
    UnreachableError,
)
from edge_client.policy import Policy
from edge_client.runtime import Runtime, SystemRuntime
from edge_client.status import Counts, Event, EventKind, Status
from hushsum.errors import ClippedRecordsWarning, DroppedRecordsWarning
from hushsum_proto.credentials import Credentials

__all__ = [
    "AbsentWarning",
    "AccountError",
    "AuthenticationError",
    "ClientStateError",
    "ClippedRecordsWarning",
    "ClockWarning",
    "Config",
    "Counts",
    "Credentials",
    "DroppedRecordsWarning",
    "EdgeClient",
    "EdgeError",
    "EdgeWarning",
    "Event",
    "EventKind",
    "EventTimeError",
    "FlushTimeoutError",
    "NoPartError",
    "NotCountedError",
    "NotCountedWarning",
    "PlanChangedError",
    "Policy",
    "PolicyError",
    "Runtime",
    "SessionRefusedError",
    "SettingsError",
    "SpoolError",
    "SpoolFullError",
    "SpoolInUseError",
    "Status",
    "SystemRuntime",
    "UnreachableError",
]
