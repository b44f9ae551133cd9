"""Softmax, logsumexp and their gradients."""
