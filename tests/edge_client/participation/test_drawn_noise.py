"""A share of noise is drawn before it is asked for, used once, and kept only while it may still be used."""

from fractions import Fraction

import numpy as np
import pytest

from edge_client.participation.secure_sum import DrawnShare, DrawnShares
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import GuaranteeError
from hushsum.noise import DiscreteGaussian

SHARE = DiscreteGaussian(Fraction(9))


def drawn(seed: bytes = b"a share of the noise") -> DrawnShare:
    return DrawnShare(SHARE, 40, ReplayableEntropy(seed))


def test_it_is_what_its_sampler_draws_and_nothing_is_drawn_when_it_is_taken() -> None:
    share = drawn()
    nothing = ReplayableEntropy(b"")
    before = nothing.read(8)
    taken = share.sample(40, nothing)
    np.testing.assert_array_equal(taken, SHARE.sample(40, ReplayableEntropy(b"a share of the noise")))
    again = ReplayableEntropy(b"")
    again.read(8)
    assert nothing.read(8) == again.read(8) != before  # nothing was read in between


def test_to_take_it_twice_is_refused_and_it_is_forgotten() -> None:
    share = drawn()
    share.sample(40, ReplayableEntropy(b""))
    assert not share.is_unused
    with pytest.raises(GuaranteeError, match="used once"):
        share.sample(40, ReplayableEntropy(b""))
    assert not [value for value in vars(share).values() if isinstance(value, np.ndarray)]


def test_a_vector_of_another_size_does_not_get_it() -> None:
    share = drawn()
    with pytest.raises(ValueError, match="a share of 41 draws, expected 40"):
        share.sample(41, ReplayableEntropy(b""))


def test_a_share_does_not_show_what_was_drawn() -> None:
    assert repr(drawn()) == "DrawnShare(is_unused=True)"


def test_shares_are_kept_for_open_windows_until_they_are_used() -> None:
    shares, first, second = DrawnShares(), drawn(), drawn(b"another")
    assert shares.of(7) is None
    shares.keep(7, first, windows=range(6, 8))
    shares.keep(8, second, windows=range(7, 9))
    assert (shares.of(7), shares.of(8)) == (first, second)
    first.sample(40, ReplayableEntropy(b""))
    assert shares.of(7) is None
    shares.keep(10, drawn(), windows=range(9, 11))
    assert shares.of(8) is None
