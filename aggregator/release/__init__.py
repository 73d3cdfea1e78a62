"""Outcomes of sealed windows: drawn, committed, certified, published."""
