"""Builds modules and tasks from options: models over batches, heads, losses. Imports: jobs.config and below."""
