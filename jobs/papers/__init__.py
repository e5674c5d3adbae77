"""Experiments of the papers that are not training runs. Imports: jobs.bench and below."""
