"""Has the GPS hybrid: options, layer, GatedGCN, and the modules before and after the layers."""
