"""Sets of many small graphs: their source, writer and reader. Imports: storage.snapshots, .statistics and what they import."""
