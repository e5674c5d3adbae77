"""Ingestion spread over Ray's workers. Imports: cluster.ray and below."""
