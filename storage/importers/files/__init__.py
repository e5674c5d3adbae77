"""Readers of .npz files and of published pickles. Pickles are never executed. Imports: storage.importers.memory, storage.format, storage.filesystem, core."""
