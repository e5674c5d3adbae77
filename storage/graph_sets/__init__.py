"""Sets of many small graphs: their source, writer and reader. Imports: storage.snapshots, .splits, .statistics and what they import."""
