"""Published private methods that no maintained library has, written small: for comparison alone.

Their noise is of floats, from a generator that is no secret: they do not protect records. The noise of each is that for
its stated ε under add/remove neighbours.
"""
