"""A sum of many clients' counters; the server learns none of them (docs/explanation/secure-sums.md).

The protocol is that of Bell, Bonawitz, Gascón, Lepoint and Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead" (2020), against a server that may lie at every step. All of it is sans-I/O: bytes and events
come in, effects go out. Nobody here reads a clock, opens a socket or writes a file, and randomness is an argument.

- ``client`` and ``server``: the state machines of the two sides.
- ``roster``: the members of a round, their keys, and what clients demand of the survivors.
- ``shamir``: secrets in shares, and back.
- ``key_agreement``: the keys of two clients and of one, sealed shares, and the masks that a key makes.
- ``neighbour_graph``: which members are neighbours.
"""
