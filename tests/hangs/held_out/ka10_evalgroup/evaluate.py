import torch
import torch.distributed as dist

from evalset import eval_rows, load_manifest


class Evaluation:
    """Evaluates on the ranks that have a part of the evaluation set."""

    def __init__(self):
        self.rank = dist.get_rank()
        self.manifest = load_manifest(self.rank)
        self.group = None

    def members(self):
        return [rank for rank, rows in enumerate(self.manifest["parts"]) if rows]

    def run(self, model):
        if self.group is None:
            self.group = dist.new_group(self.members(), use_local_synchronization=True)
        if self.rank in self.members():
            inputs, targets = eval_rows(self.manifest, self.rank)
            with torch.no_grad():
                error = (model(inputs) - targets).square().sum()
            totals = torch.stack([error, torch.tensor(float(len(inputs)))])
            dist.all_reduce(totals, group=self.group)
            result = [float(totals[0] / totals[1])]
        else:
            result = [None]
        dist.broadcast_object_list(result, src=0)
        return result[0]
