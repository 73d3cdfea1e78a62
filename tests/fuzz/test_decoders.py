"""Every public decoder of the tree is one that a target tries."""

from tests.fuzz.found import LEFT_OUT, decoders, decoders_in, stands_in
from tests.fuzz.targets import TARGETS
from tests.fuzz.targets_wire import translators

NAMED = {name for target in TARGETS.values() for name in target.decoders}
PLANTED = """
class Thing:
    @classmethod
    def from_bytes(cls, data): ...
    def _unpack(self): ...
def unpack_planted(data): ...
def planted_from_wire(message): ...
def harmless(data): ...
"""


def test_every_public_decoder_is_named_by_a_target_or_left_out_for_a_reason() -> None:
    assert [name for name in decoders() if not stands_in(name, NAMED) and not stands_in(name, LEFT_OUT)] == []


def test_a_planted_decoder_is_found() -> None:
    found = list(decoders_in(PLANTED, "hushsum.planted"))
    assert [name.removeprefix("hushsum.planted.") for name in found] == [
        "Thing.from_bytes",
        "unpack_planted",
        "planted_from_wire",
    ]
    assert not any(stands_in(name, NAMED) or stands_in(name, LEFT_OUT) for name in found)


def test_what_is_left_out_is_still_there() -> None:
    found = decoders()
    assert [name for name in LEFT_OUT if not any(stands_in(each, {name}) for each in found)] == []


def test_every_translator_of_the_wire_has_a_target() -> None:
    assert translators().keys() <= NAMED


def test_names_of_targets_are_names_of_files_and_each_is_one_target() -> None:
    assert all(name == target.name and name.replace("-", "").isalnum() for name, target in TARGETS.items())
