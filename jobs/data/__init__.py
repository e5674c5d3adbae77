"""A run's data, prepared if it does not exist yet. Imports: jobs.config and its floor."""
