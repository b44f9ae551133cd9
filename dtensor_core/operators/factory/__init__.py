"""Tensors made like another tensor."""
