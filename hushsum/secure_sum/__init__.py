"""A sum of many clients' counters that the server learns without learning any of them (MATH.md §7, PRIVACY.md).

The room of the protocol: Bell, Bonawitz, Gascón, Lepoint and Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead" (2020), against a server that may lie at every step. All of it is sans-I/O: bytes and events
come in, effects go out. Nobody here reads a clock, opens a socket or writes a file, and randomness is an argument.

- ``shamir``: secrets in shares, and back.
- ``masks``: what a key adds to a vector, and takes off it.
- ``agreement``: the keys of two clients and of one, and sealed shares.
- ``graph``: who is whose neighbour.
"""
