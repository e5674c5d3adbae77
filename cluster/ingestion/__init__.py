"""Ingests molecules in this process or in Ray tasks. Imports: cluster.ray and below."""
