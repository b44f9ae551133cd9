import torch
import torch.distributed as dist


class Patch:
    """A patch of a plane that is distributed over a mesh of 2 x 2 ranks."""

    def __init__(self, mesh, rank, size=24):
        self.lines = {name: mesh.get_group(name) for name in ("x", "y")}
        self.rank = rank
        self.grid = torch.linspace(0, 6.28, size)
        self.plane = torch.zeros(size, size)

    def wave(self, step):
        along_y = 0.6 + 0.05 * step
        along_x = 0.9
        if self.rank == 3:
            along_x += 0.012 * step * max(0, step - 8)
        self.plane = torch.sin(self.grid * along_x)[:, None] + torch.sin(self.grid * along_y)[None, :]

    def rough_axis(self):
        along_x = self.plane.diff(dim=0).abs().mean()
        along_y = self.plane.diff(dim=1).abs().mean()
        if along_x > along_y:
            return "x"
        return "y"

    def smooth(self):
        axis = self.rough_axis()
        dim = 0 if axis == "x" else 1
        profile = self.plane.mean(dim=dim, keepdim=True).contiguous()
        dist.all_reduce(profile, group=self.lines[axis])
        self.plane = 0.9 * self.plane + 0.05 * profile
        return axis
