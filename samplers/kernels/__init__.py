"""Compiled loops over arrays: draws, searches, pushes, relabelling, rows. Imports: storage, core."""
