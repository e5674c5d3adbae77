"""Has the papers' experiments that are not a training run. Imports: jobs.bench and below."""
