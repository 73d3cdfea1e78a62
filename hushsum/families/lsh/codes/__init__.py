"""Codes by definition: what was drawn for every row, frozen; the engines that compute them are elsewhere."""
