"""Graph-parallel forms: a graph sharded over ranks, its halo exchange and its global terms. Imports: models.operators, .encodings and below."""
