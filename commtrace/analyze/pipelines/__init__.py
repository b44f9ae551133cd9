"""Pipelines: idle time of their stages by cause, and better splits of layers.

rounds       actions of each call of a schedule, and what they wait for
transfers    sends and receives between stages
delays       time between what an action waits for and its begin, by cause
replay       rounds with other durations and delays
causes       what each interval of idle time is made of, from replays
bubbles      table of these intervals
layers       time of each layer of a stage
split        the split of layers whose longest stage is shortest
stages       table of stages
"""
