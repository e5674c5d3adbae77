"""Checkpoints: format, names, the newest good one. Imports: cluster.embeddings, .runs and below."""
