"""Generated graphs of the shape of ogbn-products and ogbn-mag. Imports: storage.format, core."""
