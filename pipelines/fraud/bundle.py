"""A trained model on disk: what it is, what it reads, how good it was, and on which data.

A folder a version: `model.ubj` is XGBoost's own file, `model.json` says the rest and the hash of
the former, `reference.parquet` is a sample of what it was trained on, without ids, which later
inputs are compared with. A model is loaded only if its file is the one that was described, if the
service still gives what it was trained on, in name and type, and if its XGBoost is not newer than
the one here.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from feast import FeatureStore

from pipelines.fraud.inputs import REQUEST_INPUTS

__all__ = ["Bundle", "ModelRefused", "Models", "digest_of", "schema_of"]

_MODEL: Final = "model.ubj"
_SAID: Final = "model.json"
_REFERENCE: Final = "reference.parquet"
_CURRENT: Final = "current"
_HISTORY: Final = "history"
_REMEMBERED: Final = 20
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FORMAT: Final = 1


class ModelRefused(Exception):
    """A model cannot be used here; the message says which, why, and what to do."""


@dataclass(frozen=True)
class Bundle:
    """A trained model.

    Attributes:
        version: its name among the versions.
        service: the feature service that it reads.
        features: name -> Feast type, in the model's order, after `REQUEST_INPUTS`.
        review_at, decline_at: scores from which a payment is looked at, and declined.
        rounds: trees.
        metrics: of the test week; and `before`, of the folds on whose weeks training stopped.
        data: fingerprint and period of what it was trained on.
        made: with which versions, on which device, when.
        digest: of the model file.
        raw: the model file.
        reference: the sample of its training inputs, as a Parquet file; empty where it was loaded,
            see `Models.reference`.
    """

    version: str
    service: str
    features: Mapping[str, str]
    review_at: float
    decline_at: float
    rounds: int
    metrics: Mapping[str, Any]
    data: Mapping[str, Any]
    made: Mapping[str, Any]
    digest: str
    raw: bytes = field(repr=False)
    reference: bytes = field(default=b"", repr=False)

    @property
    def inputs(self) -> tuple[str, ...]:
        """All that the model reads, in its order."""
        return (*REQUEST_INPUTS, *self.features)

    def booster(self) -> Any:
        """The model, as XGBoost has it.

        Raises:
            ModelRefused: it is no model of XGBoost, reads other inputs than it says, or was made
                by a newer XGBoost than the one here.
        """
        import xgboost

        made, here = self.made.get("xgboost", "?"), xgboost.__version__
        if _release(made) > _release(here):
            raise ModelRefused(
                f"model {self.version!r} was made by XGBoost {made}, and this is {here}, which may "
                f"read it wrongly without an error: pip install 'xgboost>={made}', or train it here"
            )
        booster = xgboost.Booster()
        try:
            booster.load_model(bytearray(self.raw))
        except xgboost.core.XGBoostError as error:
            raise ModelRefused(
                f"model {self.version!r}: its {_MODEL} is no model of XGBoost: "
                f"{str(error).splitlines()[-1]}"
            ) from error
        names = tuple(booster.feature_names or ())
        if names != self.inputs:
            raise ModelRefused(
                f"model {self.version!r} reads {', '.join(names) or 'inputs without names'}, and "
                f"its {_SAID} says {', '.join(self.inputs)}: the two are of different models"
            )
        return booster

    def check(self, store: FeatureStore) -> None:
        """Make sure that the store serves what the model was trained on.

        Raises:
            ModelRefused: the service is gone, or differs; the message names what.
        """
        found = schema_of(store, self.service)
        if found == dict(self.features):
            return
        missing = [name for name in self.features if name not in found]
        added = [name for name in found if name not in self.features]
        typed = [
            f"{name} is {found[name]} and was {said}"
            for name, said in self.features.items()
            if name in found and found[name] != said
        ]
        problem = "; ".join(
            [
                *([f"it lacks {', '.join(missing)}"] if missing else []),
                *([f"it adds {', '.join(added)}"] if added else []),
                *typed,
            ]
        )
        # an order of its own changes nothing: columns are asked for by name
        if problem:
            raise ModelRefused(
                f"model {self.version!r} was trained on another service {self.service!r} than the "
                f"registry has: {problem}. Train it anew, or apply the features it was trained on"
            )


def schema_of(store: FeatureStore, service: str) -> dict[str, str]:
    """The features of a service, name -> Feast type, in its order.

    Raises:
        ModelRefused: there is no such service.
    """
    try:
        found = store.get_feature_service(service)
    except Exception as error:
        raise ModelRefused(
            f"the registry has no feature service {service!r}: run `feast apply`, or "
            "`python -m pipelines.fraud features`"
        ) from error
    return {
        feature.name: str(feature.dtype)
        for projection in found.feature_view_projections
        for feature in projection.features
    }


def digest_of(raw: bytes) -> str:
    """The hash under which a model file is known."""
    return blake2b(raw, digest_size=16).hexdigest()


class Models:
    """The versions of a model in a folder, one of which is current.

    Args:
        folder: holds a folder a version; `current`, which names one of them; and `history`, which
            names those that were current before it, one a line, the latest last.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def versions(self) -> list[str]:
        """All that are there, oldest first."""
        found = list(self.folder.glob(f"*/{_SAID}")) if self.folder.is_dir() else []
        return [one.parent.name for one in sorted(found, key=lambda one: one.stat().st_mtime_ns)]

    def save(self, bundle: Bundle) -> Path:
        """Write a version; it appears whole or not at all.

        Raises:
            ModelRefused: the version's name cannot be a folder's, or is taken by another model.
        """
        if not _VERSION.fullmatch(bundle.version):
            raise ModelRefused(
                f"version {bundle.version!r}: use letters, digits, dots and dashes, 64 at the most"
            )
        target = self.folder / bundle.version
        if target.exists():
            before, now = asdict(self.load(bundle.version)), asdict(bundle)
            for name in ("made", "reference"):
                del before[name], now[name]
            if json.loads(json.dumps(before, default=str)) == json.loads(
                json.dumps(now, default=str)
            ):
                return target
            raise ModelRefused(
                f"version {bundle.version!r} is another model already: name the new one otherwise"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))
        try:
            (made / _MODEL).write_bytes(bundle.raw)
            said = {"format": _FORMAT, **asdict(bundle)}
            del said["raw"], said["reference"]
            if bundle.reference:
                (made / _REFERENCE).write_bytes(bundle.reference)
            (made / _SAID).write_text(json.dumps(said, indent=2) + "\n", "utf-8")
            made.chmod(0o755)
            made.rename(target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        return target

    def load(self, version: str | None = None) -> Bundle:
        """Read a version; the current one if left out.

        Raises:
            ModelRefused: it is not there, cannot be read, or its file is not the one described.
        """
        if version is None:
            version = self.current()
        folder = self.folder / version
        try:
            said = json.loads((folder / _SAID).read_text("utf-8"))
            raw = (folder / _MODEL).read_bytes()
            if said.pop("format") != _FORMAT:
                raise ValueError("its format is another")
            bundle = Bundle(**said, raw=raw)
        except FileNotFoundError as error:
            known = ", ".join(self.versions()) or "none"
            raise ModelRefused(
                f"{self.folder} holds no model {version!r}; there are: {known}. "
                "`python -m pipelines.fraud train` makes one"
            ) from error
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise ModelRefused(f"{folder} cannot be read as a model: {error}") from error
        if digest_of(raw) != bundle.digest:
            raise ModelRefused(
                f"{folder / _MODEL} is not the file that {_SAID} describes: it was changed or cut "
                "short. Restore it, or train the model anew"
            )
        return bundle

    def reference(self, version: str) -> Path | None:
        """The sample of what a version was trained on; None of one that was trained without."""
        path = self.folder / version / _REFERENCE
        return path if path.is_file() else None

    def current(self) -> str:
        """The version that is to be served.

        Raises:
            ModelRefused: none is.
        """
        try:
            return (self.folder / _CURRENT).read_text("utf-8").strip()
        except FileNotFoundError as error:
            raise ModelRefused(
                f"{self.folder} names no current model: run `python -m pipelines.fraud train`, or "
                "`python -m pipelines.fraud deploy VERSION`"
            ) from error

    def stamp(self) -> tuple[int, ...]:
        """What changes whenever another version is made current; one look at a file's date."""
        try:
            found = (self.folder / _CURRENT).stat()
        except FileNotFoundError:
            return ()
        return found.st_ino, found.st_mtime_ns

    def before(self) -> list[str]:
        """The versions that were current before the one that is, the latest last."""
        try:
            found = (self.folder / _HISTORY).read_text("utf-8").split()
            current = self.current()
        except (FileNotFoundError, ModelRefused):
            return []
        while found and found[-1] == current:  # whoever wrote the two files died in between
            found.pop()
        return found

    def make_current(self, version: str) -> None:
        """Name the version that is to be served from now on; loaded first, so that it can be.

        Raises:
            ModelRefused: it cannot be loaded.
        """
        self.load(version)
        with self._alone():
            try:
                now = self.current()
            except ModelRefused:
                now = version
            if now != version:
                self._write(_HISTORY, [*self.before(), now][-_REMEMBERED:])
            self._write(_CURRENT, [version])

    def roll_back(self, version: str) -> None:
        """Make the version that was current before it again; a second time, the one before that.

        Args:
            version: which one that is, as `before` says.

        Raises:
            ModelRefused: it cannot be loaded, or is not the one any more.
        """
        self.load(version)
        with self._alone():
            before = self.before()
            if not before or before[-1] != version:
                raise ModelRefused(
                    f"{self.folder}: {version!r} is not the version before the current one any "
                    "more: somebody has deployed another meanwhile. Look, and ask again"
                )
            self._write(_CURRENT, [version])
            self._write(_HISTORY, before[:-1])

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While nobody else moves the pointer."""
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, name: str, versions: Sequence[str]) -> None:
        handle, made = tempfile.mkstemp(prefix=f".{name}-", dir=self.folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{version}\n" for version in versions)
        Path(made).chmod(0o644)
        Path(made).replace(self.folder / name)


def _release(version: str) -> tuple[int, ...]:
    numbers: Sequence[str] = re.findall(r"\d+", version.split("+")[0])
    return tuple(int(one) for one in numbers[:2])
