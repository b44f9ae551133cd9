import random


def read_lines(rank, count=160):
    """Lines as they come from the export of one site."""
    source = random.Random(rank)
    for number in range(count):
        values = [source.gauss(0, 1) for _ in range(4)]
        values.append(sum(values))
        text = ";".join(f"{value:.4f}" for value in values)
        if rank == 1 and number == 75:
            text = text.replace(".", ",")    # the site changed its locale
        yield text


def parse(line):
    return [float(field) for field in line.split(";")]
