"""How many payments a second two processes decide, with some layers on.

The processes are those of `python -m pipelines.fraud score --file`, each with the cards of a part:
they read features, score, write decisions to a database and record the payments in the windows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pandas as pd

__all__ = ["measure"]

_PROCESSES: Final = 2
_SIZE: Final = 2_000


def measure(
    command: Sequence[str],
    transactions: pd.DataFrame,
    without: Sequence[str],
    payments: int,
    *,
    together: bool = True,
) -> float:
    """Payments a second, of all processes together.

    Args:
        command: options of `python -m pipelines.fraud` that name the repo, the folder, the store.
        transactions: whose latest are decided, as new ones.
        without: layers that are off.
        payments: how many.
        together: whether payments of one card in one batch are decided at once.

    Raises:
        RuntimeError: a process failed; the message is its own.
    """
    rows = transactions.tail(payments)
    rows = rows.assign(TRANSACTION_ID=[f"t{place}" for place in range(len(rows))])
    with tempfile.TemporaryDirectory(prefix="hotplate-throughput-") as folder:
        path = Path(folder) / "payments.parquet"
        rows.to_parquet(path, index=False)
        given = [sys.executable, "-m", "pipelines.fraud", *command, "score", "--file", str(path)]
        given += ["--database", f"sqlite:///{folder}/decisions.db", "--size", str(_SIZE)]
        given += ["--restamp", "--json", "--device", "cpu"]
        given += ["--together"] if together else []
        given += [part for layer in without for part in ("--without", layer)]
        started = [
            subprocess.Popen(
                [*given, "--part", f"{number + 1}/{_PROCESSES}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(_PROCESSES)
        ]
        total = 0.0
        for process in started:
            said, problem = process.communicate()
            if process.returncode:
                raise RuntimeError(f"a scoring process failed: {problem.strip()[-500:]}")
            total += json.loads(said.splitlines()[-1])["per_s"]
        return total
