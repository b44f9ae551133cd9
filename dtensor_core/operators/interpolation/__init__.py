"""Interpolation (`upsample_*`)."""
