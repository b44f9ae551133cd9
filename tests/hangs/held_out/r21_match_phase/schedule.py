from dataclasses import dataclass


@dataclass
class Progress:
    tokens: int = 0
    phase: str = "warmup"


class Curriculum:
    """The phase of the training follows from the tokens that were seen."""

    def __init__(self, warmup, refresh):
        self.warmup = warmup
        self.refresh = refresh
        self.refreshed = 0

    def advance(self, progress, tokens):
        progress.tokens += tokens
        if progress.tokens < self.warmup:
            progress.phase = "warmup"
        elif progress.tokens // self.refresh > self.refreshed:
            self.refreshed = progress.tokens // self.refresh
            progress.phase = "refresh"
        else:
            progress.phase = "main"
        return progress.phase
