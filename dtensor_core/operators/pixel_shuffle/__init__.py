"""Pixel and channel shuffles."""
