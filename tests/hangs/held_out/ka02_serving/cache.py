from collections import OrderedDict


class PrefixCache:
    """Keeps the keys and values of recent prefixes, least recently used first."""

    def __init__(self, budget):
        self.budget = budget
        self.used = 0
        self.entries = OrderedDict()
        self.hits = 0
        self.misses = 0

    def get(self, key):
        entry = self.entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self.entries.move_to_end(key)
        return entry

    def put(self, key, entry):
        size = sum(t.numel() * t.element_size() for t in entry)
        while self.entries and self.used + size > self.budget:
            _, old = self.entries.popitem(last=False)
            self.used -= sum(t.numel() * t.element_size() for t in old)
        self.entries[key] = entry
        self.used += size
