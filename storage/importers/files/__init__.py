"""Readers of .npz files and published pickles, which are never run. Imports: storage.importers.memory, storage.format, storage.filesystem, core."""
