"""Manages the snapshots of a graph: commit, list, lease, prune. Imports: storage.format, storage.filesystem, core."""
