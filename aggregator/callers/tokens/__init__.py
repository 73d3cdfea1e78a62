"""Bearer tokens: a file of hashes, how it is looked up, read again and edited."""
