"""Studies: trials, search, scaling, their tables. Imports: jobs.plan and below."""
