"""How contenders compare when the machine is noisy."""

import statistics


def median_ratio(mine, other, key):
    """The median of the ratios of turns of the same repeat: what slows both cancels out.

    None where one of the two was not measured.
    """
    ratios = [a[key] / b[key] for a, b in zip(mine or [], other or [], strict=False)]
    return statistics.median(ratios) if ratios else None
