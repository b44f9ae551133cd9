"""Dumps of torch's flight recorder, which its watchdog writes when a collective times out."""
