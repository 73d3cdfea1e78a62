"""Version 1 of the wire: the protocol, and the stubs that are generated from it."""
