"""Mutations of protobuf messages by their wire format, and good messages of any kind at random."""

import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from hushsum.bitpacking import varint
from tests.fuzz import octets
from tests.fuzz.numbers import some_number, some_varint
from tests.fuzz.pieces import cut_varint, number_in

_NUMBER, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TEXTS: Final = ("", "x", "tumbling", "é", "e\u0301", "a" * 300, "\u0000", "\U0010ffff", "1/3", "0.5")
_DEPTH_MAX: Final = 6


class Field(NamedTuple):
    """One field as it stands on the wire."""

    number: int
    kind: int
    data: bytes

    def written(self, rng: random.Random | None = None) -> bytes:
        """Its bytes; with a wrong length if a generator is given."""
        tag = varint(self.number << 3 | self.kind)
        if self.kind != _BYTES:
            return tag + self.data
        size = len(self.data)
        return tag + (varint(size) if rng is None else some_varint(rng, size)) + self.data


def fields_of(data: bytes) -> list[Field] | None:
    """The fields of a message; None where it is none."""
    at, found = 0, []
    while at < len(data):
        end = cut_varint(data, at)
        tag = number_in(data[at:end])
        number, kind = tag >> 3, tag & 7
        if kind == _NUMBER:
            at, end = end, cut_varint(data, end)
        elif kind in {_FIXED64, _FIXED32}:
            at, end = end, end + (8 if kind == _FIXED64 else 4)
        elif kind == _BYTES:
            start = cut_varint(data, end)
            at, end = start, start + number_in(data[end:start])
        else:
            return None
        if end > len(data) or not number:
            return None
        found.append(Field(number, kind, data[at:end]))
        at = end
    return found


def mutated(rng: random.Random, data: bytes, donors: Sequence[bytes], depth: int = _DEPTH_MAX) -> bytes:
    """The message after a few changes to its fields, or to those of a message inside."""
    fields = fields_of(data) if rng.random() < 0.93 else None
    if fields is None:
        return octets.mutated(rng, data, donors)
    wrong = -1
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        step, place = rng.random(), rng.randrange(len(fields)) if fields else -1
        if place < 0 or step < 0.08:
            fields.insert(rng.randint(0, len(fields)), _any(rng))
        elif step < 0.68:
            fields[place] = _changed(rng, fields[place], donors, depth)
        elif step < 0.74:
            del fields[place]
        elif step < 0.80:
            fields.insert(rng.randint(0, len(fields)), fields[place])
        elif step < 0.85:
            fields[place] = fields[place]._replace(number=rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 16, 2**29 - 1)))
        elif step < 0.89:
            rng.shuffle(fields)
        elif step < 0.92:
            wrong = place
        else:
            other = fields_of(rng.choice(donors))
            if other:
                fields[place] = rng.choice(other)
    return b"".join(field.written(rng if place == wrong else None) for place, field in enumerate(fields))


def _changed(rng: random.Random, field: Field, donors: Sequence[bytes], depth: int) -> Field:
    if field.kind == _NUMBER:
        return field._replace(data=some_varint(rng, number_in(field.data)))
    if field.kind in {_FIXED32, _FIXED64}:
        size = len(field.data)
        return field._replace(data=(some_number(rng) % (1 << 8 * size)).to_bytes(size, "little"))
    if depth and rng.random() < 0.6 and fields_of(field.data):
        return field._replace(data=mutated(rng, field.data, donors, depth - 1))
    if rng.random() < 0.2:
        return field._replace(data=rng.choice(_TEXTS).encode())
    return field._replace(data=octets.mutated(rng, field.data, donors))


def _any(rng: random.Random) -> Field:
    number, kind = rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 4096)), rng.choice((_NUMBER, _BYTES, _FIXED64, _FIXED32))
    size = {_NUMBER: 0, _FIXED64: 8, _FIXED32: 4, _BYTES: rng.choice((0, 1, 32))}[kind]
    return Field(number, kind, rng.randbytes(size) if kind else varint(min(some_number(rng), 2**64 - 1)))


_SIGNED: Final = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63}
_UNSIGNED: Final = {FieldDescriptor.CPPTYPE_UINT32: 32, FieldDescriptor.CPPTYPE_UINT64: 64}


def filled(rng: random.Random, message: Message, depth: int = 4) -> Message:
    """The message with good values at random in most of its fields; bytes have often the length of an id."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.12 or depth == 0:
            continue
        many = field.is_repeated
        for _ in range(rng.randint(0, 3) if many else 1):
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                part = getattr(message, field.name)
                part = part.add() if many else part
                part.SetInParent()
                filled(rng, part, depth - 1)
            elif many:
                getattr(message, field.name).append(_value(rng, field))
            else:
                setattr(message, field.name, _value(rng, field))
    return message


def _value(rng: random.Random, field: Any) -> Any:  # a field's descriptor, of whichever implementation
    kind = field.cpp_type
    if kind in _SIGNED:
        return rng.choice((0, 1, -1, rng.getrandbits(20), (1 << _SIGNED[kind]) - 1, -(1 << _SIGNED[kind])))
    if kind in _UNSIGNED:
        return rng.choice((0, 1, rng.getrandbits(20), (1 << _UNSIGNED[kind]) - 1))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values])
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(_TEXTS)
    return rng.randbytes(rng.choice((32, 32, 32, 64, 5, 0)))
