"""Builds modules and tasks from options: models that take batches, heads, losses. Imports: jobs.config and below."""
