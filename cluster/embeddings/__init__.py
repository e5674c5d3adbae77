"""Trainable embeddings of nodes: tables on servers, their clients and optimizers. Imports: cluster.serving, .runs and below."""
