"""Scores in float64, stragglers, Prometheus. Imports: samplers, storage, core."""
