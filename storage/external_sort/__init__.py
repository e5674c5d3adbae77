"""Sorts edges on disk, in buckets that fit into memory. Imports: core."""
