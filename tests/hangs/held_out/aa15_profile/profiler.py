import threading
import time


class HookProfiler:
    """Times modules by forward hooks; may be read from another thread."""

    def __init__(self, capacity=64, alert=50.0):
        self.lock = threading.Lock()
        self.capacity, self.alert = capacity, alert
        self.rows, self.started, self.reports = [], {}, []

    def attach(self, model):
        for name, module in model.named_modules():
            if not list(module.children()):
                module.register_forward_pre_hook(lambda m, a, name=name: self.enter(name))
                module.register_forward_hook(lambda m, a, out, name=name: self.leave(name, out))

    def enter(self, name):
        self.started[name] = time.perf_counter()

    def leave(self, name, out):
        took = time.perf_counter() - self.started.pop(name)
        peak = out.detach().abs().max().item()
        with self.lock:
            self.rows.append((name, took, peak))
            if peak > self.alert:
                self.report(f"{name}: activation {peak:.1f}")
            if len(self.rows) >= self.capacity:
                del self.rows[:self.capacity // 2]

    def report(self, reason):
        self.reports.append((reason, self.totals()))

    def totals(self):
        total = {}
        with self.lock:
            for name, took, _ in self.rows:
                total[name] = total.get(name, 0.0) + took
        return total
