class BatchSchedule:
    """Doubles the batch once the loss has fallen enough ("do not decay the learning rate")."""

    def __init__(self, size=4, largest=16, threshold=0.6):
        self.size = size
        self.largest = largest
        self.threshold = threshold
        self.reference = None

    def update(self, loss):
        if self.reference is None:
            self.reference = loss
            return
        if loss < self.threshold * self.reference and self.size < self.largest:
            self.size *= 2
            self.reference = loss
