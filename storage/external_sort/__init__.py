"""Edges sorted on disk, in buckets that fit memory. Imports: core."""
