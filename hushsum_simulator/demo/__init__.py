"""The demo of `hushsum simulate`: a fleet of clients over real data, a kill, and a release compared with the truth."""
