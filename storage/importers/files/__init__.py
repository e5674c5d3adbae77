"""Files that other libraries write: .npz, published pickles (read, never run). Imports: storage.format, core."""
