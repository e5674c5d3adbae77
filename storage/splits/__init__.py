"""Draws splits during ingestion: options, and which rows are for training, validation and test. Imports: storage.format, core."""
