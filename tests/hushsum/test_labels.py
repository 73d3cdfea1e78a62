"""Labels keep hashes of different purposes apart: none is a prefix of another."""

from hushsum import labels


def test_no_label_is_a_prefix_of_another() -> None:
    every = [value for name, value in vars(labels).items() if name.isupper() and isinstance(value, bytes)]
    assert sorted(every) == sorted(labels.ALL)
    for first in every:
        assert first.endswith(b"\0")
        assert first.count(b"\0") == 1
        assert sum(other.startswith(first) for other in every) == 1
