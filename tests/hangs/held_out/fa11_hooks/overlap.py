import torch.distributed as dist


class OverlappedReducer:
    """Starts the reduction of a gradient as soon as it is there; finish() waits for all."""

    def __init__(self, model, group):
        self.group = group
        self.world = dist.get_world_size(group)
        self.handles = {}
        for name, param in model.named_parameters():
            param.register_post_accumulate_grad_hook(self.make_hook(name))

    def make_hook(self, name):
        def hook(param):
            param.grad /= self.world
            self.handles[name] = dist.all_reduce(param.grad, group=self.group, async_op=True)

        return hook

    def finish(self):
        for name in list(self.handles):
            self.handles.pop(name).wait()
