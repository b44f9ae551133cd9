"""Padding and its gradients."""
