"""Turns a source of nodes and edges into a stored graph. Keeps to a memory budget.

Imports: storage.partitioning, .snapshots, .splits, .statistics and what they import.
"""
