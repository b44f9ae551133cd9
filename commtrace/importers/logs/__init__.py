"""Text logs: lines of torch's watchdog and of NCCL."""
