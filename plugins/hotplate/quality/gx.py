"""The one file that knows Great Expectations.

Its pandas engine copies the whole frame for each column that it looks at, and keeps what it found
of each until the end; a table of many columns takes long so, and much memory (`python -m
pipelines.quality bench` measures it). A batch here holds only the columns that its expectations
name, one batch after the other. The results are Great Expectations' own, of the same rows.

Four expectations are ours, made as its documentation has it: what a column is stored as, that
floats are whole numbers, that versions come in order, that entities are known elsewhere.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pandas as pd

from hotplate.quality.derive import Expected
from hotplate.quality.errors import QualityError
from hotplate.quality.kinds import NOTHING, kind_of
from hotplate.quality.profiling import disorder_of


@contextmanager
def _quietly() -> Iterator[None]:
    """It warns of its own imports; filters are the process's: only the main thread changes them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _as_a_program() -> Iterator[None]:
    """Under `python -c`, PySpark takes the process for its own doctests and ends it, with 0.

    Great Expectations imports PySpark wherever that is installed.
    """
    main = sys.modules.get("__main__")
    if main is None or hasattr(main, "__file__"):
        yield
        return
    main.__file__ = "<command>"
    try:
        yield
    finally:
        del main.__file__


_showwarning = warnings.showwarning
try:
    with _quietly(), _as_a_program():
        import great_expectations as gx
        import great_expectations.expectations as gxe
        from great_expectations.core import ExpectationSuite
        from great_expectations.data_context.types.base import (
            DataContextConfig,
            InMemoryStoreBackendDefaults,
            ProgressBarsConfig,
        )
        from great_expectations.execution_engine import PandasExecutionEngine
        from great_expectations.expectations.expectation import (
            BatchExpectation,
            ColumnMapExpectation,
            ColumnPairMapExpectation,
            Expectation,
            MulticolumnMapExpectation,
        )
        from great_expectations.expectations.metrics.map_metric_provider import (
            ColumnMapMetricProvider,
            MulticolumnMapMetricProvider,
            column_condition_partial,
            multicolumn_condition_partial,
        )
except ImportError as error:
    raise QualityError(
        where="data quality",
        problem=f"needs Great Expectations, which cannot be imported ({error})",
        fix="Install it: pip install 'feast-hotplate[quality]'.",
    ) from error
finally:
    if warnings.showwarning is not _showwarning:
        logging.captureWarnings(False)  # it turns that on for the whole process
    if not logging.getLogger("great_expectations").level:  # it logs at length what a verdict says
        logging.getLogger("great_expectations").setLevel(logging.CRITICAL)

__all__ = ["Judge", "Verdict", "columns_of", "is_about_rows", "known", "made", "version"]

_EXAMPLES: Final = 5
_FORMAT: Final = {"result_format": "BASIC", "partial_unexpected_count": _EXAMPLES}
_MARK: Final = "hotplate"
_MUCH: Final = 200_000_000
_MANY: Final = 20
_TIMES: Final = 3  # a frame, its rows without nulls, and what is true of each of them
_known: ContextVar[Mapping[str, Collection[Any]]] = ContextVar("known", default={})  # noqa: B039


@contextmanager
def known(entities: Mapping[str, Collection[Any]]) -> Iterator[None]:
    """Which entities each view knows, for `ExpectEntitiesToBeKnown`, during the block.

    They stay out of the expectation: what it says is written into results, and ids must not be.
    """
    token = _known.set(entities)
    try:
        yield
    finally:
        _known.reset(token)


class EntitiesKnown(ColumnMapMetricProvider):  # type: ignore[misc]
    """Whether an entity is one of those that another view knows."""

    condition_metric_name = "column_values.known_to_view"
    condition_value_keys = ("known_to",)

    @column_condition_partial(engine=PandasExecutionEngine)  # type: ignore[untyped-decorator]
    def _pandas(cls, column: Any, known_to: str, **_: Any) -> Any:
        return column.isin(_known.get()[known_to])


class ExpectEntitiesToBeKnown(ColumnMapExpectation):  # type: ignore[misc]
    """Expect the entities of one view to be known to another one."""

    known_to: str
    map_metric: ClassVar[str] = "column_values.known_to_view"
    success_keys: ClassVar[tuple[str, ...]] = ("known_to", "mostly")
    args_keys = ("column", "known_to")


class ValuesWhole(ColumnMapMetricProvider):  # type: ignore[misc]
    """Whether a float is a whole number."""

    condition_metric_name = "column_values.whole"

    @column_condition_partial(engine=PandasExecutionEngine)  # type: ignore[untyped-decorator]
    def _pandas(cls, column: Any, **_: Any) -> Any:
        return column % 1 == 0


class ExpectColumnValuesToBeWhole(ColumnMapExpectation):  # type: ignore[misc]
    """Expect floats to be whole numbers."""

    map_metric: ClassVar[str] = "column_values.whole"
    args_keys = ("column",)


class VersionsIncrease(MulticolumnMapMetricProvider):  # type: ignore[misc]
    """Whether no row of the same entity and a later moment was known before."""

    condition_metric_name = "multicolumn_values.versions_increase"
    condition_domain_keys = (
        "batch_id",
        "table",
        "column_list",
        "row_condition",
        "condition_parser",
        "ignore_row_if",
    )

    @multicolumn_condition_partial(engine=PandasExecutionEngine)  # type: ignore[untyped-decorator]
    def _pandas(cls, column_list: Any, **_: Any) -> Any:
        return ~disorder_of(column_list)


class ExpectVersionsToIncrease(MulticolumnMapExpectation):  # type: ignore[misc]
    """Expect moments of an entity to come in the order in which they became known.

    `column_list` names the keys, then the moment, then since when the row was known.
    """

    map_metric: ClassVar[str] = "multicolumn_values.versions_increase"
    args_keys = ("column_list",)


class ExpectColumnToBeStoredAs(BatchExpectation):  # type: ignore[misc]
    """Expect a column to be stored as one of some kinds; see `hotplate.quality.kinds`.

    Looks at a batch of Arrow types, as the source has them: pandas turns whole numbers with nulls
    into floats, and a batch of its own types would say so of data that is right.
    """

    column: str
    kinds: list[str]
    metric_dependencies = ("table.column_types",)
    success_keys = ("column", "kinds")
    domain_keys = ("batch_id",)
    args_keys = ("column", "kinds")

    def _validate(
        self,
        metrics: dict[str, Any],
        runtime_configuration: Any = None,
        execution_engine: Any = None,
    ) -> dict[str, Any]:
        types = {one["name"]: one["type"] for one in metrics["table.column_types"]}
        stored = types[self.column].pyarrow_dtype
        kind = kind_of(stored)
        # a column of nothing but nulls is for another expectation to judge
        return {
            "success": kind == NOTHING or kind in self.kinds,
            "result": {"observed_value": f"is stored as {stored}"},
        }


_OURS: Final = {
    one.__name__: one
    for one in (
        ExpectColumnToBeStoredAs,
        ExpectColumnValuesToBeWhole,
        ExpectEntitiesToBeKnown,
        ExpectVersionsToIncrease,
    )
}


@dataclass(frozen=True)
class Verdict:
    """What Great Expectations says of one expectation.

    Attributes:
        name: of the expectation, as `expect_column_values_to_not_be_null`.
        is_good: whether the data is as expected.
        share: of the rows that are not; None where it is not about rows.
        failing, of: as numbers.
        values: some of them: values, or column -> value.
        observed: what was seen, where it is not about rows.
        problem: why it could not be judged; "" where it could.
    """

    name: str
    is_good: bool
    share: float | None = None
    failing: int | None = None
    of: int | None = None
    values: tuple[Any, ...] = ()
    observed: Any = None
    problem: str = ""


def made(one: Expected) -> Any:
    """The expectation of Great Expectations that a description stands for."""
    kind = _OURS.get(one.kind) or getattr(gxe, one.kind)
    return kind(**one.arguments)


def version() -> str:
    """Of Great Expectations."""
    return str(gx.__version__)


def columns_of(expectation: Any) -> tuple[str, ...] | None:
    """The columns that an expectation reads; None where it may read any.

    Raises:
        TypeError: it is none of Great Expectations'.
    """
    if not isinstance(expectation, Expectation):
        raise TypeError(f"{type(expectation).__name__} is no expectation of Great Expectations")
    said = expectation.configuration.kwargs
    if said.get("row_condition"):
        return None
    names = [said.get(key) for key in ("column", "column_A", "column_B")]
    found = [one for one in names if isinstance(one, str)]
    found += [one for one in said.get("column_list") or () if isinstance(one, str)]
    return tuple(dict.fromkeys(found)) or None


def is_about_rows(expectation: Any) -> bool:
    """Whether it judges row by row, and so says something of a few rows, too."""
    return isinstance(
        expectation, (ColumnMapExpectation, ColumnPairMapExpectation, MulticolumnMapExpectation)
    )


class Judge:
    """Runs expectations on frames. Nothing is written anywhere, nothing is sent.

    Each frame has a name of its own: an engine keeps what it computed by the names of the batch
    and the column, and would answer for a second frame with what it found in the first. It keeps
    the frames, too, so it is given up for another one when they are many or large; they hang
    together in circles that Python finds late by itself.

    Not for two threads at once.
    """

    def __init__(self) -> None:
        self._engine: Any = None
        self._frames = 0
        self._kept_bytes = 0

    def __call__(self, frame: pd.DataFrame, expectations: Sequence[Any]) -> list[Verdict]:
        """What comes of each expectation, in their order.

        Args:
            frame: the rows.
            expectations: of Great Expectations.
        """
        # copies: a suite binds what it is given, and one declaration may be run on many batches
        marked = [
            one.copy(update={"meta": {**(one.meta or {}), _MARK: number}, "id": None})
            for number, one in enumerate(expectations)
        ]
        batch = self._batches().get_batch({"dataframe": frame})
        suite = ExpectationSuite(name="hotplate", expectations=marked)
        found = batch.validate(suite, result_format=_FORMAT)
        self._kept_bytes += _TIMES * int(frame.memory_usage().sum())
        by_number = {one.expectation_config.meta[_MARK]: one for one in found.results}
        return [_verdict(by_number[number]) for number in range(len(expectations))]

    def _batches(self) -> Any:
        if self._frames >= _MANY or self._kept_bytes > _MUCH:
            is_much = self._kept_bytes > _MUCH
            self._engine, self._frames, self._kept_bytes = None, 0, 0
            if is_much:
                gc.collect()
        if self._engine is None:
            self._engine = _new_engine()
        self._frames += 1
        asset = self._engine.add_dataframe_asset(f"rows {self._frames}")
        return asset.add_batch_definition_whole_dataframe("all")


def _new_engine() -> Any:
    defaults = InMemoryStoreBackendDefaults(init_temp_docs_sites=False)  # nothing on the disk
    bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    config = DataContextConfig(store_backend_defaults=defaults, progress_bars=bars)
    context = gx.get_context(mode="ephemeral", project_config=config)
    return context.data_sources.add_pandas("hotplate")


def _verdict(found: Any) -> Verdict:
    name, result = found.expectation_config.type, found.result or {}
    problem = _problem(found.exception_info)
    if problem:
        return Verdict(name, is_good=False, problem=problem)
    percent = result.get("unexpected_percent")
    if "unexpected_count" not in result:
        return Verdict(name, bool(found.success), observed=result.get("observed_value"))
    # a share is of the rows that have a value, but where nulls themselves are asked for
    of, missing = result.get("element_count"), result.get("missing_count") or 0
    return Verdict(
        name,
        bool(found.success),
        share=None if percent is None else percent / 100,
        failing=result.get("unexpected_count"),
        of=of if of is None or missing == result["unexpected_count"] else of - missing,
        values=tuple(result.get("partial_unexpected_list") or ())[:_EXAMPLES],
    )


def _problem(said: Any) -> str:
    """The first error's text; Great Expectations keeps one or one for each metric."""
    infos = [said] if said and "raised_exception" in said else list((said or {}).values())
    for info in infos:
        if info.get("raised_exception"):
            lines = str(info.get("exception_message") or "").strip().splitlines()
            return lines[-1][:300] if lines else "it raised an error without a text"
    return ""
