"""What ingestion measures of a graph and keeps in its manifest. Imports: storage.format, storage.external_sort, core."""
