"""Streams of batches: threads, order, rows by schedule. Imports: samplers.drawing and below."""
