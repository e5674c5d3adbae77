"""Our loader in other libraries' training loops."""
