"""Generated graphs shaped like ogbn-products and ogbn-mag. Imports: storage.format, core."""
