import torch

GOAL, MOVES, HORIZON = 2, 3, 12


class Corridor:
    """Walk to the goal; in some layouts a wall is in the way."""

    def __init__(self, seed, walls=()):
        self.g = torch.Generator().manual_seed(seed)
        self.walls = set(walls)

    def episode(self, policy, layout):
        place, score = 0, 0.0
        blocked = layout in self.walls
        logps, entropies = [], []
        for t in range(HORIZON):
            state = torch.tensor([place / GOAL, t / HORIZON, 1.0])
            probs = policy(state).softmax(0)
            move = int(torch.multinomial(probs.detach(), 1, generator=self.g))
            logps.append(torch.log(probs[move]))
            entropies.append(-(probs * probs.log()).sum())
            place = max(0, place + move - 1)
            if blocked:
                place = min(place, 1)
            if place >= GOAL:
                score = 1.0 - t / HORIZON
                break
        return torch.stack(logps), torch.stack(entropies).mean(), score
