"""The alert rules as Prometheus itself reads them: each fires on what it is for, and not before."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hotplate.telemetry.assets import asset

SAID: Final = {
    "HotplateServedPastTtl": {
        'hotplate_served_late_total{project="p", group="g"}': "0 0 0 1+0x12",
    },
    "HotplateRowsDiffer": {
        'hotplate_shadow_rows_total{project="p", group="g", outcome="differed"}': "0 0 0 1+0x12"
    },
    "HotplateGroupExcluded": {'hotplate_group_excluded{project="p", group="g"}': "0 0 0 1+0x12"},
    "HotplateFaults": {'hotplate_faults_total{project="p"}': "0 0 0 1+0x8"},
    "HotplateSourceFails": {
        'hotplate_loads_total{project="p", group="g"}': "0+100x20",
        'hotplate_load_errors_total{project="p", group="g"}': "0 0 0 0+5x17",
    },
    "HotplateServesLastGood": {'hotplate_last_good_total{project="p", group="g"}': "0 0 0 0+5x12"},
    "HotplateChannelDown": {'hotplate_channel_up{project="p"}': "1 1 1 0+0x12"},
    "HotplateSharedTierDown": {'hotplate_shared_up{project="p"}': "1 1 1 0+0x12"},
    "HotplateInvalidationsOwed": {
        'hotplate_shared_invalidations_owed{project="p"}': "0 0 0 2+0x12"
    },
    "HotplateMemoryTooSmall": {
        'hotplate_evictions_total{project="p", group="g", bound="bytes"}': "0 0 0 0+30x50",
        'hotplate_loads_total{project="p", group="g"}': "0+100x53",
    },
    "HotplateOutputsDiffer": {
        'hotplate_output_shadow_rows_total{project="p", model="m", model_version="1", '
        'outcome="differed"}': "0 0 0 1+0x12"
    },
    "HotplateOutputsOff": {
        'hotplate_output_off{project="p", model="m", model_version="1"}': "0 0 0 1+0x12"
    },
    "HotplateRuleFails": {
        'hotplate_output_rule_errors_total{project="p", model="m", model_version="1", rule="r"}': (
            "0 0 0 1+0x12"
        )
    },
    "HotplateDataNotAsExpected": {'hotplate_quality_failed_total{project="p"}': "0 0 0 1+0x12"},
    "HotplateEventsLost": {
        'hotplate_events_dropped_total{project="p", view="v", reason="late"}': "0 0 0 3+0x12"
    },
    "HotplateTrafficLost": {
        'hotplate_traffic_requests_total{project="p", outcome="lost"}': "0 0 0 9+0x12"
    },
}
"""Alert -> series, a value a minute; nothing is wrong in the first three."""


def promtool() -> str:
    """The program; without it the tests are skipped, except where CI says that it is there."""
    found = shutil.which("promtool")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("promtool is not installed: apt-get install prometheus")
        pytest.skip("promtool is not installed")
    return found


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """The file of rules."""
    path = tmp_path / "alerts.yml"
    path.write_text(asset("alerts.yml"))
    return path


def check(*arguments: str) -> str:
    done = subprocess.run([promtool(), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_reads_them(rules: Path) -> None:
    """Its own tool finds nothing wrong, and each rule is tried below."""
    said = check("check", "rules", str(rules))
    names = [
        rule["alert"]
        for group in yaml.safe_load(rules.read_text())["groups"]
        for rule in group["rules"]
    ]
    assert f"{len(names)} rules found" in said
    assert sorted(names) == sorted(SAID)


@pytest.mark.parametrize("name", SAID)
def test_an_alert_fires_on_what_it_is_for(name: str, rules: Path) -> None:
    """Not in the first three minutes; then, after the time it waits, with a text that is whole."""
    (rule,) = [
        rule
        for group in yaml.safe_load(rules.read_text())["groups"]
        for rule in group["rules"]
        if rule["alert"] == name
    ]
    waits = int(rule.get("for", "0m").removesuffix("m"))
    series = [{"series": said, "values": values} for said, values in SAID[name].items()]
    tried: dict[str, Any] = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "alert_rule_test": [{"eval_time": "2m", "alertname": name, "exp_alerts": []}],
                "promql_expr_test": [],
            }
        ],
    }
    path = rules.with_name("test.yml")
    path.write_text(yaml.safe_dump(tried))
    check("test", "rules", str(path))
    tried["tests"][0]["alert_rule_test"][0] |= {"eval_time": f"{2 * waits + 6}m"}
    path.write_text(yaml.safe_dump(tried))
    done = subprocess.run(
        [promtool(), "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0, f"{name} does not fire"
    assert f'alertname="{name}"' in done.stdout + done.stderr
    assert "<no value>" not in done.stdout + done.stderr
    assert "error expanding" not in (done.stdout + done.stderr).lower()
