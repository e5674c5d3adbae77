"""Scores in float64, slow ranks, Prometheus. Imports: samplers, storage, core."""
