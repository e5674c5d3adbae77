"""Samplers, one per file, and the table of their names. Imports: samplers.drawing and below."""
