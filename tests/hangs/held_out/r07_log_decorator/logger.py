import json
import sys

from utils import rank_zero_only


class MetricLogger:
    def __init__(self, stream=sys.stdout):
        self.stream = stream
        self.lines = 0

    @rank_zero_only
    def write(self, step, meters):
        record = {"step": step}
        for name, meter in meters.items():
            record[name] = round(meter.mean(), 5)
            meter.reset()
        self.stream.write(json.dumps(record) + "\n")
        self.stream.flush()
        self.lines += 1
