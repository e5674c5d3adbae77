"""Commits, lists, leases and prunes the snapshots of a graph. Imports: storage.format, storage.filesystem, core."""
