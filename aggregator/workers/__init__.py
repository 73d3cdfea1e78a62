"""Folds at work: the partitions of this process, and what others have stored."""
