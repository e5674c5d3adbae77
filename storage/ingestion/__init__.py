"""Turns a source of nodes and edges into a stored graph, within a memory budget.

Imports: storage.partitioning, .snapshots, .splits, .statistics and what they import.
"""
