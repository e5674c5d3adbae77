"""Trainable embeddings of nodes: servers that hold the table's rows, clients of these servers, and optimizers. Imports: cluster.serving, .runs and below."""
