"""Which partition a node goes to: random, range, LDG, METIS. Imports: storage.format, storage.filesystem, core."""
