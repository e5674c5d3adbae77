"""Access to fsspec filesystems: URLs, retries, durable writes, listings, errors in one line, temporary folders. Imports: core."""
