"""Files that other libraries write: .npz, published pickles (read, never run). Imports: storage.importers.memory, storage.format, storage.filesystem, core."""
