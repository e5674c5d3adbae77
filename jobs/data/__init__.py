"""A run's data, prepared where it is not there yet. Imports: jobs.config and its floor."""
