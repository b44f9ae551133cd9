"""Logs of NCCL Inspector, one file per process."""
