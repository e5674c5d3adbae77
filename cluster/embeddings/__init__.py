"""Trainable rows of nodes: tables at servers, their clients and optimizers. Imports: cluster.serving, .runs and below."""
