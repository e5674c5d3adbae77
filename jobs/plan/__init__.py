"""`--plan`: memory, traffic and time of a run, measured on drawn batches. Imports: jobs.resolve and below."""
