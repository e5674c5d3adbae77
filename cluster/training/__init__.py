"""Trains a model: the training loop, and the launchers that start it (one process or Ray Train). Imports: every room of cluster but prediction."""
