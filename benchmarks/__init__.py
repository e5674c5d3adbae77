"""Comparisons for developers. The wheel does not contain them. Users run `graphmill bench`."""
