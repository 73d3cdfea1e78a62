"""Published private methods that no maintained library has, written small: for comparison alone.

Their noise is of floats, from a generator that is no secret, so that they protect nobody. Each states the ε that its
noise pays for under add/remove neighbours.
"""
