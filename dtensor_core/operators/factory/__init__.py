"""Tensors made like another one."""
