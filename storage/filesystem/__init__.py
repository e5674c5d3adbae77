"""Functions for access to fsspec filesystems: URLs, retries, durable writes, listings, one-line errors, temporary folders. Imports: core."""
