"""`--plan`: what a run would need, measured on drawn batches. Imports: jobs.resolve and below."""
