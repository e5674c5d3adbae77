"""Stores sets of many small graphs: source interface, writer and reader. Imports: storage.snapshots, .splits, .statistics and what they import."""
