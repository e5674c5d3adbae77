"""Positional encodings of a stored graph, computed and stored beside it. Imports: storage.graph and what it imports."""
