"""Positional encodings of a stored graph, computed and stored with it. Imports: storage.graph and what it imports."""
