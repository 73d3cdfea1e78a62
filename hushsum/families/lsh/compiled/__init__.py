"""The engine in compiled loops; importing any of its modules imports numba."""
