"""Pages and plots of runs and sweeps. Imports: jobs.records and its floor."""
