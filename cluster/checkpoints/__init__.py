"""Checkpoints: format, names, the newest valid one. Imports: cluster.embeddings, .runs and below."""
