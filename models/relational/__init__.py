"""Networks over typed graphs: options and networks."""
