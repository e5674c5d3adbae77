"""Computes scores in float64, finds slow ranks, and exports figures to Prometheus. Imports: samplers, storage, core."""
