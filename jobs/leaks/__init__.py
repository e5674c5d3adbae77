"""Looks for leaks in a stored graph, a set of graphs or a run: the table of checks, one file for each kind of check. Imports: tasks, reporting, config, storage, core."""
