"""Many clients of the live page at once, in one thread: `python page_clients.py PORT CLIENTS SECONDS RUN`.

Prints one JSON object: how many answers there were by status, how many requests had none, and the
longest that one took.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from urllib.parse import quote


async def ask(port: int, path: str, body: bytes = b"") -> int:
    """Ask on a connection of its own, and return the status of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: localhost:{port}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        answer = await reader.read()
    finally:
        writer.close()
    return int(answer.split(b" ", 2)[1])


async def client(port: int, number: int, end: float, run: str, seen: Counter[str]) -> float:
    """Ask for one thing after the other until the end; return the longest time that one took."""
    name = quote(run, safe="")
    query = json.dumps({"runs": [run], "instruments": ["loss", "alpha"], "width": 300}).encode()
    wanted: list[tuple[str, bytes]] = [
        ("/api/runs", b""),
        (f"/api/board?run={name}", b""),
        ("/api/panels", query),
        ("/", b""),
        (f"/api/settings?run={name}", b""),
        (f"/api/data?run={name}&format=csv", b""),
        ("/static/app.js", b""),
    ]
    longest, turn = 0.0, number
    while time.monotonic() < end:
        path, body = wanted[turn % len(wanted)]
        turn += 1
        begun = time.monotonic()
        try:
            status = str(await asyncio.wait_for(ask(port, path, body), 60))
        except (OSError, IndexError, asyncio.TimeoutError) as error:
            status = type(error).__name__
        seen[status] += 1
        longest = max(longest, time.monotonic() - begun)
    return longest


async def crowd(port: int, clients: int, seconds: float, run: str) -> dict[str, object]:
    """Let so many clients ask at the same time."""
    seen: Counter[str] = Counter()
    end = time.monotonic() + seconds
    longest = await asyncio.gather(*(client(port, k, end, run, seen) for k in range(clients)))
    return {"answers": dict(seen), "longest": round(max(longest), 2)}


if __name__ == "__main__":
    port, clients, seconds, run = sys.argv[1:]
    print(json.dumps(asyncio.run(crowd(int(port), int(clients), float(seconds), run))))
