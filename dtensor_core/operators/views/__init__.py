"""Views and reshapes."""
