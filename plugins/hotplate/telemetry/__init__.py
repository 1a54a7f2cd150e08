"""What a deployment shows of itself: metrics for Prometheus and OpenTelemetry, a dashboard, alerts.

Every metric is declared once, in `catalogue`. Each process writes its own into a folder, in the
format that prometheus_client has for several processes (`publisher`); whoever wants to know reads
the folder and adds them up (`reading`): `hotplate metrics`, `hotplate top`, `hotplate stats`, or
the application's own endpoint.
"""

from hotplate.telemetry.catalogue import CATALOGUE, Metric, Sample, measure
from hotplate.telemetry.errors import TelemetryError
from hotplate.telemetry.reading import Collector, Reading, exposition, read_folder, read_url

__all__ = [
    "CATALOGUE",
    "Collector",
    "Metric",
    "Reading",
    "Sample",
    "TelemetryError",
    "exposition",
    "measure",
    "read_folder",
    "read_url",
]
