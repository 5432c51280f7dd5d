"""How contenders compare when the machine is noisy."""

import math
import statistics


def turn_ratios(mine, other, key):
    """The ratios of turns of the same repeat: what slows both cancels out.

    None of them where one of the two was not measured.
    """
    return [a[key] / b[key] for a, b in zip(mine or [], other or [], strict=False)]


def median_ratio(mine, other, key):
    """Their median; None where one of the two was not measured."""
    ratios = turn_ratios(mine, other, key)
    return statistics.median(ratios) if ratios else None


def median_range(values, confidence=0.9):
    """From where to where the true median may lie, given these `values`: the narrowest pair of
    them, equally far from both ends, between which it lies so surely. Of few values, the outermost.
    """
    ordered, count = sorted(values), len(values)
    outside, cut = 2 / 2**count, 0  # how often all values lie on one side of it
    while outside + 2 * math.comb(count, cut + 1) / 2**count <= 1 - confidence:
        cut += 1
        outside += 2 * math.comb(count, cut) / 2**count
    return ordered[cut], ordered[-1 - cut]
