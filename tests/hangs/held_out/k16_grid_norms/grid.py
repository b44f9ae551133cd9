import torch.distributed as dist


class Grid:
    def __init__(self, rows, cols):
        rank = dist.get_rank()
        self.row = self.col = None
        for r in range(rows):
            members = [r * cols + c for c in range(cols)]
            group = dist.new_group(members)
            if rank in members:
                self.row = group
        for c in range(cols):
            members = [r * cols + c for r in range(rows)]
            group = dist.new_group(members)
            if rank in members:
                self.col = group
