"""A report as JUnit XML, which every CI shows."""

from __future__ import annotations

import re
from typing import Final
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent, tostring

from hotplate.quality.outcome import ERROR, FAILED, SKIPPED, Checked, Outcome, Report

__all__ = ["junit"]

# what XML 1.0 cannot hold, even escaped
_FORBIDDEN: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> bytes:
    """The report's XML: a suite a view, a case an expectation."""
    root = Element("testsuites", name="hotplate quality")
    for checked in report.checked:
        _suite(root, checked, report)
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, 0)) for suite in root)))
    indent(ElementTree(root))
    return bytes(tostring(root, encoding="utf-8", xml_declaration=True))


def _suite(root: Element, checked: Checked, report: Report) -> None:
    unread = bool(checked.problem)
    suite = SubElement(
        root,
        "testsuite",
        name=_clean(checked.view),
        timestamp=report.moment.strftime("%Y-%m-%dT%H:%M:%S"),
        time=f"{checked.seconds:.3f}",
        tests=str(len(checked.outcomes) + unread),
        failures=str(checked.count(FAILED)),
        errors=str(checked.count(ERROR) + unread),
        skipped=str(checked.count(SKIPPED)),
    )
    if unread:
        case = SubElement(
            suite, "testcase", classname=_class(checked.view), name="data is readable"
        )
        SubElement(case, "error", message=_clean(checked.problem), type="unreadable")
    for one in checked.outcomes:
        _case(suite, one)


def _case(suite: Element, one: Outcome) -> None:
    name = f"{one.column or 'table'}: {one.says} [{one.expectation}]"
    case = SubElement(suite, "testcase", classname=_class(one.view), name=_clean(name), time="0")
    if one.status == FAILED:
        failure = SubElement(case, "failure", message=_clean(one.line()), type=one.check)
        failure.text = _clean("\n".join(_lines(one)))
    elif one.status == ERROR:
        SubElement(case, "error", message=_clean(one.observed), type=one.check)
    elif one.status == SKIPPED:
        SubElement(case, "skipped", message=_clean(one.observed))


def _lines(one: Outcome) -> list[str]:
    lines = [f"expected: {one.column or 'the table'} {one.says}"]
    if one.failing is not None:
        lines.append(f"failing: {one.failing:,} of {one.of or 0:,} rows")
    if one.examples:
        lines.append(f"examples: {', '.join(one.examples)}")
    if one.observed:
        lines.append(f"observed: {one.observed}")
    if one.hint:
        lines.append(f"hint: {one.hint}")
    return lines


def _class(view: str) -> str:
    return f"hotplate.quality.{_clean(view)}"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
