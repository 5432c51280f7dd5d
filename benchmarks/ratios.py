"""How contenders compare when the machine is noisy."""

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
