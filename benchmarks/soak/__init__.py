"""A long run: good clients beside thousands of hostile connections."""
