"""Sums over segments, norms, dropout by position, propagation, the Graphs that a model takes. Imports: models.options."""
