"""Copies of partitions on a host's disk, verified against their origin. Imports: storage.graph and what it imports."""
