"""What a run is asked to do."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Options", "ReadsError"]


class ReadsError(Exception):
    """It cannot run as asked; the message says what to do."""


@dataclass(frozen=True)
class Options:
    """The command's options, by name; see `python -m pipelines.reads --help`."""

    data: Path | None
    transactions: int
    rate: float
    skew: float
    customers: int
    terminals: int
    seed: int
    store: str
    outside_write: bool
    repo: Path
    out: Path

    def check(self) -> None:
        """Find early what would fail late.

        Raises:
            ReadsError: a file or folder that is named is not there or not of its kind.
        """
        if self.data is not None and not self.data.is_file():
            raise ReadsError(f"--data {self.data}: no such file; give a *.parquet or *.csv file")
        if not (self.repo / "feature_store.yaml").is_file():
            raise ReadsError(
                f"--repo {self.repo}: holds no feature_store.yaml; name a feature repo"
            )
        if self.out.exists() and not self.out.is_dir():
            raise ReadsError(f"--out {self.out}: is not a folder; name another")

    def command(self) -> str:
        """The command that does the same again."""
        said = [f"--transactions {self.transactions}", f"--rate {self.rate:g}"]
        said += [f"--skew {self.skew:g}", f"--seed {self.seed}"]
        if not self.outside_write:
            said += ["--no-outside-write"]
        if self.data is None:
            said += [f"--customers {self.customers}", f"--terminals {self.terminals}"]
        else:
            said += [f"--data {shlex.quote(str(self.data))}"]
        return " ".join(["python -m pipelines.reads", *said])
