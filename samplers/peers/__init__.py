"""Graphmill's loader in other libraries' training loops."""
