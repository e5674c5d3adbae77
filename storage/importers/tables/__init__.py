"""Readers of tables in text, Parquet or Matrix Market files: edges, node columns, triples, typed graphs. Imports: storage.graph and what it imports."""
