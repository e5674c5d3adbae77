"""Generates graphs whose size and degrees resemble ogbn-products and ogbn-mag. Imports: storage.format, core."""
