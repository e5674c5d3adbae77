"""Reads public data sets, by name, from the files that their publishers provide. Imports: every other folder of storage."""
