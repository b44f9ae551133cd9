"""Recording from inside of a trainer, with numbers for whatever the trainer logs to.

transformers     CommtraceCallback(trainer) for transformers' Trainer
lightning        CommtraceCallback() for Lightning's Trainer
accelerate       CommtraceTracker(accelerator), beside its trackers

monitor          the recording, its steps and regions, and when numbers are due
scalars          the numbers
artifacts        the page, for loggers that take files
libraries        the error if a trainer's library is missing

Each of the first three needs its library; nothing else in commtrace imports them.
"""
