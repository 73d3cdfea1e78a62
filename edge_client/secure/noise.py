"""A client's share of the noise, drawn before the service is called.

To draw it takes a time that depends on what is drawn. So it is drawn before a call begins, not between a grant and a
vector, which are the service's to time; and it is kept while rounds of its window end unspent.
"""

import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy
from hushsum.errors import GuaranteeError
from hushsum.secure_sum.contribution import Share

_Int64s = npt.NDArray[np.int64]


class DrawnShare:
    """A share that is drawn here and now, and used once; to a round it is what it draws from.

    Args:
        share: What draws it.
        size: Of the vector.
        entropy: Private randomness.
    """

    def __init__(self, share: Share, size: int, entropy: Entropy) -> None:
        self._drawn: _Int64s | None = share.sample(size, entropy)

    @property
    def is_there(self) -> bool:
        """Whether it is still to be used."""
        return self._drawn is not None

    def sample(self, size: int, entropy: Entropy) -> _Int64s:  # noqa: ARG002  drawn already: nothing is read
        """(size,) int64: the share, which is forgotten here.

        Raises:
            GuaranteeError: It was taken before: the difference of two vectors would be without noise.
            ValueError: It was drawn in another size.
        """
        if self._drawn is None:
            raise GuaranteeError("a share of noise is used once")
        if self._drawn.shape != (size,):
            raise ValueError(f"a share of {size} draws, expected {self._drawn.size}")
        drawn, self._drawn = self._drawn, None
        return drawn

    def __repr__(self) -> str:
        return f"DrawnShare(is_there={self.is_there})"


class DrawnShares:
    """The shares of a client's open windows, as long as they are unused."""

    def __init__(self) -> None:
        self._shares: dict[int, DrawnShare] = {}

    def of(self, window: int) -> DrawnShare | None:
        """The share of a window; None where none is there."""
        share = self._shares.get(window)
        return share if share is not None and share.is_there else None

    def keep(self, window: int, share: DrawnShare, *, windows: range) -> None:
        """Keeps the share of a window, and forgets those of all windows but these."""
        self._shares = {each: kept for each, kept in self._shares.items() if each in windows and kept.is_there}
        self._shares[window] = share
