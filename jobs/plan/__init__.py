"""`--plan`: estimates memory, traffic and time of a run from drawn batches. Imports: jobs.resolve and below."""
