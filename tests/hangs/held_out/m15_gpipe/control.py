from collections import deque


class StopRule:
    def __init__(self, target, window):
        self.target = target
        self.values = deque(maxlen=window)

    def add(self, value):
        self.values.append(value)

    def reached(self):
        if len(self.values) < self.values.maxlen:
            return False
        return sum(self.values) / len(self.values) < self.target
