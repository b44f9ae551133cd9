"""Work of devices, and their streams and kernels.

device_work       kernels and copies by sort, and the idle time before each
gpu_time          time of each device and stream
kernel_patterns   communication kernels by name
"""
