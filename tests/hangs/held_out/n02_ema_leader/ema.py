import copy

import torch
import torch.distributed as dist


class Ema:
    def __init__(self, model, decay):
        self.shadow = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)


class Leaderboard:
    """Scores of the population; the weights of the leader go to everybody."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.board = {}

    def publish(self, score):
        self.board[self.rank] = score
        scores = [None] * self.world
        dist.all_gather_object(scores, score)
        for rank, value in enumerate(scores):
            self.board[rank] = value

    def leader(self):
        return max(self.board, key=self.board.get)

    @torch.no_grad()
    def adopt(self, model, ema):
        src = self.leader()
        for p in ema.shadow.parameters():
            dist.broadcast(p, src=src)
        if self.board[self.rank] < self.board[src]:
            model.load_state_dict(ema.shadow.state_dict())
        return src
