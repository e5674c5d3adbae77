"""From options to modules and tasks: models over batches, heads, losses. Imports: jobs.config and its floor."""
