"""Streams of batches: sampling threads, delivery in order, fetching of rows by plan. Imports: samplers.drawing and below."""
