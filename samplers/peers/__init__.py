"""Graphmill's loader for training loops of other libraries."""
