"""Traces of torch.profiler (Kineto): read as streams, classified, and made calls and kernels."""
