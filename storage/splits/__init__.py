"""Splits that ingestion draws: their options, and who trains, validates and tests. Imports: storage.format, core."""
