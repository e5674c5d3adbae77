"""Pages and plots of runs and sweeps. Imports: jobs.records and below."""
