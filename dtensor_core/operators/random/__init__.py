"""Random operators and dropout."""
