"""Has graph-parallel forms of models: a graph sharded over ranks, the halo exchange and global terms. Imports: models.operators, .encodings and below."""
