import glob
import os
import time

import torch


class CheckpointFolder:
    def __init__(self, path, keep=3):
        self.path, self.keep = path, keep

    def save(self, model, step):
        name = os.path.join(self.path, f"step-{step}.pt")
        torch.save(model.state_dict(), name + ".part")
        os.replace(name + ".part", name)

    def latest(self):
        names = sorted(glob.glob(os.path.join(self.path, "step-*.pt")))
        return names[-self.keep:]

    def averaged_name(self):
        newest = self.latest()[-1]
        return newest.replace("step-", "avg-")

    def write_average(self, step):
        states = [torch.load(n) for n in self.latest()]
        mean = {k: sum(s[k] for s in states) / len(states) for k in states[0]}
        name = self.averaged_name()
        torch.save(mean, name + ".part")
        os.replace(name + ".part", name)

    def wait_average(self, step, poll=0.1):
        name = os.path.join(self.path, f"avg-{step}.pt")
        while not os.path.exists(name):
            time.sleep(poll)
        return torch.load(name)
