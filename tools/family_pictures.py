"""Pictures of the families of algorithms: `python -m tools.family_pictures docs/images`.

Each shows the server above three clients: blue layers are the same for all, other colours a
client's own.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

SHARED, FROZEN, INK = "#4c78a8", "#d0d0d0", "#404040"
OWN = ("#f58518", "#54a24b", "#b279a2")
CLIENTS = (75, 200, 325)  # x of their models
TOP, BOTTOM = 26, 124  # y of the server's and of the clients' models


def model(x: float, y: float, colours: Sequence[str], width: float = 36) -> str:
    """Return a model as a pile of three layers, the head first, centred at x."""
    layer = '<rect x="{}" y="{}" width="{}" height="12" rx="2" fill="{}"/>'
    return "".join(
        layer.format(x - width / 2, y + 14 * k, width, colour) for k, colour in enumerate(colours)
    )


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
    return f'<line {ends} stroke="{INK}" stroke-width="1.3" marker-end="url(#a)"/>'


def text(x: float, y: float, words: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="middle">{words}</text>'


def exchange(servers: Sequence[float] = (200, 200, 200)) -> str:
    """Return arrows between each client and the server's model at an x of its own."""
    parts = []
    for server, client in zip(servers, CLIENTS, strict=True):
        parts.append(arrow(client - 6, BOTTOM - 8, server - 6, TOP + 48))
        parts.append(arrow(server + 6, TOP + 48, client + 6, BOTTOM - 8))
    return "".join(parts)


def clients(*piles: Sequence[str], shift: float = 0, width: float = 36) -> str:
    places = zip(CLIENTS, piles, strict=True)
    return "".join(model(x + shift, BOTTOM, pile, width) for x, pile in places)


def pictures() -> dict[str, str]:
    """Return the drawing of each family by its name."""
    blue, red = [SHARED] * 3, ["#e45756"] * 3
    own, heads = [[one] * 3 for one in OWN], [[one, SHARED, SHARED] for one in OWN]
    server = model(200, TOP, blue)
    steps = "".join(arrow(x - 10, BOTTOM + 20, x + 8, BOTTOM + 20) for x in CLIENTS)
    steps += clients(blue, blue, blue, shift=-28, width=28) + clients(*own, shift=28, width=28)
    grid = "".join(
        f'<rect x="{170 + 20 * j}" y="{TOP - 14 + 20 * i}" width="18" height="18" '
        f'fill="{OWN[j]}" fill-opacity="{(0.9, 0.5, 0.15)[abs(i - j)]}"/>'
        for i in range(3)
        for j in range(3)
    )
    adapters = "".join(
        model(x, y, [FROZEN] * 3)
        + f'<rect x="{x + 22}" y="{y}" width="8" height="40" rx="2" fill="{SHARED}"/>'
        for x, y in ((200, TOP), *((x, BOTTOM) for x in CLIENTS))
    )
    learned = f'<circle cx="200" cy="{TOP + 20}" r="24" fill="none" stroke="{INK}"/>'
    late = "".join(
        f'<line x1="{x}" y1="74" x2="{x}" y2="150" stroke="{FROZEN}"/>'
        + arrow(60, 62 + 25 * k, x, 62 + 25 * k)
        + text(x, 166, f"round {k}")
        + text(36, 66 + 25 * k, f"client {k}")
        for k, x in enumerate((150, 240, 330), 1)
    )
    two = model(140, TOP, blue) + model(260, TOP, red) + clients(blue, blue, red)
    drawn = {
        "global": (server + clients(blue, blue, blue) + exchange(), "one model for all clients"),
        "adapters": (adapters + exchange(), "frozen models (grey) with small trained adapters"),
        "tuning": (server + steps + exchange(), "own models, trained near the received one"),
        "layers": (
            model(200, TOP, ["none", SHARED, SHARED]) + clients(*heads) + exchange(),
            "shared layers, and private ones",
        ),
        "mixing": (grid + clients(*own) + exchange(), "a mean of models for each client"),
        "clusters": (two + exchange((140, 140, 260)), "a model for each cluster of clients"),
        "hypernetworks": (
            learned + text(200, TOP + 24, "learned") + clients(*own) + exchange(),
            "models, or the weights of means, from what is learned in rounds",
        ),
        "meta": (server + steps + exchange(), "one or two steps from a common start"),
        "asynchronous": (model(200, TOP - 16, blue) + late, "uploads arrive in later rounds"),
    }
    return {name: drawing + text(200, 188, words) for name, (drawing, words) in drawn.items()}


def svg(drawing: str) -> str:
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 195" width="400" height="195" '
        f'font-family="sans-serif" font-size="11" fill="{INK}"><defs><marker id="a" refX="6" '
        'refY="3" markerWidth="7" markerHeight="6" orient="auto"><path d="M0 0L7 3L0 6z" '
        f'fill="{INK}"/></marker></defs><rect width="400" height="195" rx="6" fill="#ffffff"/>'
    )
    return f"{head}{drawing}</svg>\n"


if __name__ == "__main__":
    for name, drawing in pictures().items():
        (Path(sys.argv[1]) / f"family_{name}.svg").write_text(svg(drawing), encoding="utf-8")
