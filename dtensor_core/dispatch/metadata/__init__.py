"""Global metadata of the results of a call: from shortcuts, or from corrected meta kernels."""
