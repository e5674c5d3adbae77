"""Computes positional encodings of a stored graph, and stores them with the graph. Imports: storage.graph and what it imports."""
