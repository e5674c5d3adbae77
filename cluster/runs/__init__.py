"""A run's directory, local or on an object store: its lease, records, upload. Imports: cluster.process, .metrics, .options."""
