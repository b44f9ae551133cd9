from children import Filter, checksum

FORMATS = {(1, 10): "legacy", (1, 11): "legacy"}


class ShardSet:
    """Shards of a rank with their checksums; shards of the old format pass a filter."""

    def __init__(self, rank):
        self.rank = rank
        self.filter = None

    def raw(self, number):
        return b"".join(bytes([(number * 7 + self.rank * 3 + n) % 251]) for n in range(2000)).replace(b"\n", b" ")

    def load(self, number):
        data = self.raw(number)
        if FORMATS.get((self.rank, number)) == "legacy":
            if self.filter is None:
                self.filter = Filter(["cat", "-u"])
            data = self.filter(data)
        return data, checksum(data)

    def close(self):
        if self.filter:
            self.filter.close()
