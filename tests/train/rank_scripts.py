"""What ranks run in tests (see `ranks_of_a_test`)."""

from __future__ import annotations

from typing import Any


def hello(argument: Any) -> Any:
    from towerpack.train.distributed import ranks_of_run

    ranks = ranks_of_run()
    return [argument, ranks.agree(ranks.rank + 1).ravel().tolist()]
