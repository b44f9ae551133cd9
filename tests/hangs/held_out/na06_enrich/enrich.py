import asyncio

REGIONS = {f"{code:05d}": f"region-{code // 700}" for code in range(500, 9900, 7)}


async def resolve(record, regions):
    await asyncio.sleep(0.002 * (record["id"] % 5))
    return {**record, "region": regions[record["zip"]]}


async def worker(queue, done, regions):
    while True:
        record = await queue.get()
        done.append(await resolve(record, regions))
        queue.task_done()


async def enrich(records, parallel=4):
    """Resolve the region of all records, several at a time."""
    queue = asyncio.Queue()
    done = []
    for record in records:
        queue.put_nowait(record)
    tasks = [asyncio.create_task(worker(queue, done, REGIONS)) for _ in range(parallel)]
    await queue.join()
    for task in tasks:
        task.cancel()
    return sorted(done, key=lambda record: record["id"])
