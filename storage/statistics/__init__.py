"""Statistics that ingestion measures and stores in the manifest. Imports: storage.format, storage.external_sort, core."""
