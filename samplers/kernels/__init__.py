"""Compiled loops over arrays: draws, searches, forward push, relabelling, copies of rows. Imports: storage, core."""
