"""Splits that ingestion draws: their options, and which rows train, validate and test. Imports: storage.format, core."""
