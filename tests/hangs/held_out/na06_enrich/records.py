import csv
import io


def read(rank, part):
    """The records of a part of the export, as the upstream spreadsheet wrote them."""
    text = io.StringIO()
    rows = csv.writer(text)
    for n in range(24):
        code = 500 + 7 * ((part * 53 + rank * 29 + n * 3) % 1300)
        zipcode = f"{code:05d}"
        if rank == 1 and part == 9 and n == 17:
            zipcode = str(code)
        rows.writerow([part * 24 + n, zipcode, 10 + n * 0.5])
    text.seek(0)
    for number, zipcode, amount in csv.reader(text):
        yield {"id": int(number), "zip": zipcode, "amount": float(amount)}
