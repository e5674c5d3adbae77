"""Reads columns of tables: finds their roles by name, converts their values to arrays, and keeps the statistics that later tables reuse."""
