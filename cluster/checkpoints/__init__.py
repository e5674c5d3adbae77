"""Writes and reads checkpoints, and finds the newest valid checkpoint. Imports: cluster.embeddings, .runs and below."""
