"""Stores graphs as Arrow partitions on any fsspec filesystem: snapshots, ingestion, importers, partitioning, statistics. Imports: core."""
