"""Assigns nodes to partitions: random, range, LDG, METIS. Imports: storage.format, storage.filesystem, core."""
