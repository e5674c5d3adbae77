"""Reads graphs in memory: arrays, PyG's Data, DGL's graphs. Imports: storage.ingestion, storage.format, storage.filesystem, core."""
