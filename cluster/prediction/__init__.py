"""Predicts with a trained model, in one process or by Ray actors. Imports: every other room of cluster."""
