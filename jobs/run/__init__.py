"""A run of any kind, followed and reported; its plan; files of a prediction. Imports: jobs.subjects and below."""
