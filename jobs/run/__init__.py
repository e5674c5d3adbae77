"""Executes a run of any kind, follows it and reports it; prints its plan; writes the files of a prediction. Imports: jobs.subjects and the packages below it."""
