"""A summary of the jobs of a range of seeds: `python -m tests.simulation.figures 0-299`."""

from __future__ import annotations

import sys
from collections import Counter

from tests.simulation.simulation import Simulation


def main(seeds: str) -> None:
    first, _, last = seeds.partition("-")
    total: Counter[str] = Counter()
    for seed in range(int(first), int(last or first) + 1):
        simulation = Simulation(seed)
        simulation.run()
        total += simulation.world.counts + simulation.errors
        total += Counter(seeds=1, steps=simulation.world.steps, processes=len(simulation.world.processes))
        total += Counter(checkpoints=simulation.checkpoints)
    for name, count in total.most_common():
        print(f"{count:>10,}  {name}")


if __name__ == "__main__":
    main(sys.argv[1])
