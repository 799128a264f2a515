"""The dashboard and the rules fit the metrics that there are; what Grafana is given fits together."""

from __future__ import annotations

import itertools
import re

from tests.dashboards import GRAFANA, ROOT, dashboard, metrics_in, recorded, rules_text, targets


def documented() -> set[str]:
    return set(re.findall(r"^\| `(adlro_\w+)`", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))


def test_panels_have_ids_and_places_of_their_own() -> None:
    panels = dashboard()["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    assert len({panel["title"] for panel in panels if panel["type"] != "row"}) >= 30
    for one, other in itertools.combinations(panels, 2):
        a, b = one["gridPos"], other["gridPos"]
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart = beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart, (one["title"], other["title"])
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_every_panel_asks_the_provisioned_source() -> None:
    provisioned = (GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text()
    (uid,) = re.findall(r"^\s+uid: (\S+)$", provisioned, re.MULTILINE)
    for panel in dashboard()["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["targets"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references), panel["title"]
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": uid} for source in sources), panel["title"]
    assert all(variable["datasource"]["uid"] == uid for variable in dashboard()["templating"]["list"])


def test_what_the_issue_asks_for_is_shown() -> None:
    titles = " ".join(panel["title"].lower() for panel in dashboard()["panels"])
    for wanted in ("gpu heat map", "queue", "jct", "decisions", "policy", "guard", "who acts", "errors", "utilization"):
        assert wanted in titles, wanted


def test_every_metric_that_is_asked_for_exists() -> None:
    variables = " ".join(variable["definition"] for variable in dashboard()["templating"]["list"])
    asked = " ".join([*(expr for _, expr in targets()), rules_text(), variables])
    assert metrics_in(asked) <= documented()


def test_every_recorded_series_exists_and_is_used() -> None:
    asked = " ".join([*(expr for _, expr in targets()), rules_text()])
    named = set(re.findall(r"(?<![\w:])[a-z_]+:[a-z_]+:[a-z0-9_]+", asked))
    assert named == set(recorded())
    uses = " ".join([*(expr for _, expr in targets()), *re.findall(r"expr: (.*)", rules_text())])
    assert [name for name in recorded() if name not in uses] == []


def test_no_variable_is_left_unknown() -> None:
    assert [expr for _, expr in targets() if "$" in expr] == []
