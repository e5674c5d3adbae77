"""Columns of tables: their roles by name, their values as arrays, and the statistics that later tables reuse."""
