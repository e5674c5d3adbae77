"""`--plan`: what a run would need, measured on drawn batches. Imports: jobs.run and below."""
