"""The data of a run, prepared if it does not exist yet. Imports: jobs.config and the packages below it."""
