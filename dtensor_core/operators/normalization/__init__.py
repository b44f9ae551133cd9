"""Layer, RMS, group, batch and weight norm."""
