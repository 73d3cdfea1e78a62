"""A device as a silo (mode ``local``): once a window it noises the whole sum of its records, and sends that."""
