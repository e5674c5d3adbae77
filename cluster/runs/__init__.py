"""Manages a run's directory, local or on an object store: lease, records, upload. Imports: cluster.process, .metrics, .options."""
