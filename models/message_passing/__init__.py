"""Has GCN, SAGE and GAT: options and network."""
