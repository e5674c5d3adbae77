"""Readers of other formats, one a file: tables, arrays and objects in memory, files of others, public data sets. Imports: see each room."""
