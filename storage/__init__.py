"""Graphs on disk: Arrow partitions on any fsspec filesystem, importers, partitioners, checks."""
