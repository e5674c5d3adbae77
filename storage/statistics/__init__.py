"""Measures the statistics that ingestion stores in the manifest. Imports: storage.format, storage.external_sort, core."""
