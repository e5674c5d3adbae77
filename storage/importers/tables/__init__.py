"""Tables of text, Parquet and Matrix Market: edges, node columns, triples, typed graphs. Imports: storage.graph's floor and below."""
