"""The HTML page of an evaluation: the values for its template and its plots.

One file without network access: it includes plotly's script (4.8 MB, for plots with zoom and values on any device). The
template is `page.html.jinja`; `page.js` draws the plots from this module's data.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from adlro.lab.evaluate import measure
from adlro.lab.evaluate.evaluation import Evaluation
from adlro.lab.evaluate.request import REFERENCE
from adlro.records.jobs import KINDS_OF_WORK
from adlro.text import visible_all

_GPU_NAMES_SHOWN = 64


def build_page(evaluation: Evaluation, document: dict[str, Any]) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=PackageLoader("adlro.lab.evaluate", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "figure": _figure,
        "percent": _percent,
        "p_value": _p_value,
        "span": _span,
        "verdict": _verdict,
    }
    # Autoescaping does not remove characters that hide or reverse text.
    document = visible_all(document)
    text: str = environment.get_template("page.html.jinja").render(
        scenarios=[_scenario(document, name) for name in dict.fromkeys(row["scenario"] for row in document["rows"])],
        document=document,
        meta=document["meta"],
        plots=visible_all(_plots(evaluation, document)),
        reference=REFERENCE,
        style=_own("page.css"),
        script=_own("page.js"),
        # plotly escapes it for a script element.
        plotly=Markup(get_plotlyjs()),
    )
    return text


def _own(name: str) -> Markup:
    """A file of this package, which is safe in the page."""
    text = (resources.files("adlro.lab.evaluate") / name).read_text(encoding="utf-8")
    return Markup(text)


def _scenario(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Rows and comparisons of a scenario by load, policies ordered by mean JCT."""
    loads = list(dict.fromkeys(row["load"] for row in document["rows"] if row["scenario"] == name))
    cases = []
    for load in loads:
        rows = [row for row in document["rows"] if (row["scenario"], row["load"]) == (name, load)]
        paired = [each for each in document["paired"] if (each["scenario"], each["load"]) == (name, load)]
        cases.append(
            {
                "load": load,
                "rows": sorted(rows, key=lambda row: float(row["mean_jct_s"])),
                "against": {each["policy"]: each for each in paired if each["baseline"] == REFERENCE},
                "paired": paired,
                "regressions": [
                    each
                    for each in document["statistics"]["jct_on_utilization"]
                    if (each["scenario"], each["load"]) == (name, load)
                ],
            }
        )
    about = next(case for case in document["meta"]["cases"] if case["scenario"] == name)
    return {"name": name, "cases": cases, "about": about}


def _plots(evaluation: Evaluation, document: dict[str, Any]) -> dict[str, Any]:
    """The data of the plots in `page.js`."""
    policies = list(dict.fromkeys(row["policy"] for row in document["rows"]))
    scenarios = []
    for name in dict.fromkeys(row["scenario"] for row in document["rows"]):
        numbers = [number for number, case in enumerate(evaluation.cases) if case.name == name]
        # One episode per policy: at the load nearest to 0.9, where queues form and drain.
        shown = min(numbers, key=lambda number: abs((evaluation.cases[number].load or 1.0) - 0.9))
        scenarios.append(
            {
                "name": name,
                "rows": [row for row in document["rows"] if row["scenario"] == name],
                "paired": [
                    each for each in document["paired"] if each["scenario"] == name and each["baseline"] == REFERENCE
                ],
                "distributions": [_distribution(evaluation, number, policies) for number in numbers],
                "episodes": _episodes(evaluation, shown, policies),
            }
        )
    return {
        "policies": policies,
        "jobTypes": [job_type.label.replace("_", " ") for job_type in KINDS_OF_WORK],
        "scenarios": scenarios,
    }


def _distribution(evaluation: Evaluation, number: int, policies: Sequence[str]) -> dict[str, Any]:
    """Share of jobs with at most a given JCT, for each policy."""
    curves = []
    for name in policies:
        found = evaluation.figures.get((name, number))
        if found is None or found.stuck.any() or not found.jct_counts.sum():
            continue
        share = np.concatenate([[0.0], np.cumsum(found.jct_counts) / found.jct_counts.sum()])
        inside = slice(max(0, int(np.argmax(share > 0)) - 1), int(np.argmax(share >= 1.0)) + 1)
        curves.append(
            {
                "policy": name,
                "jct": [float(f"{edge:.4g}") for edge in measure.JCT_EDGES_S[inside]],
                "share": [round(float(each), 5) for each in share[inside]],
            }
        )
    return {"load": evaluation.cases[number].load, "curves": curves}


def _episodes(evaluation: Evaluation, number: int, policies: Sequence[str]) -> dict[str, Any]:
    """The first list of a case under each policy, and its GPUs' utilization over all lists."""
    case = evaluation.cases[number]
    gpus = [gpu.gpu_id for _, gpu in case.cluster.gpus()]
    episodes = []
    for name in policies:
        found = evaluation.figures.get((name, number))
        if found is None or found.stuck.any():
            continue
        runs = found.gantt
        episodes.append(
            {
                "policy": name,
                "type": runs[:, 0].astype(int).tolist(),
                "gpu": runs[:, 1].astype(int).tolist(),
                "start": np.round(runs[:, 2], 3).tolist(),
                "end": np.round(runs[:, 3], 3).tolist(),
                "completed": runs[:, 4].astype(int).tolist(),
                "busy": np.round(found.gpu_busy / case.lists, 3).tolist(),
                "jct": round(float(found.metrics[0, 0]), 1),
            }
        )
    return {
        "load": case.load,
        "lists": case.lists,
        "cut": case.jobs > measure.GANTT_RUNS,
        "runsShown": measure.GANTT_RUNS,
        "gpus": gpus,
        "gpuNames": len(gpus) <= _GPU_NAMES_SHOWN,
        "models": [gpu.gpu_model for _, gpu in case.cluster.gpus()],
        "episodes": episodes,
    }


def _figure(value: float | None, digits: int = 1) -> str:
    """A number with so many decimals and thin spaces between thousands; `–` for a missing one."""
    return "–" if value is None else f"{value:,.{digits}f}".replace(",", "\u202f")


def _span(interval: Sequence[float | None], digits: int, between: str = " – ") -> str:
    """An interval; `–` for a missing one."""
    return "–" if None in interval else between.join(_figure(value, digits) for value in interval)


def _verdict(entry: dict[str, Any]) -> str:
    """Whether a comparison's interval of the JCT ratio excludes 1, and on which side: a class of the page's style."""
    low, high = entry["jct_ratio_ci95"]
    if low is None or low <= 1 <= high:
        return ""
    return "good" if high < 1 else "bad"


def _percent(ratio: float | None, digits: int = 1) -> str:
    return "–" if ratio is None else f"{100 * ratio:.{digits}f} %"


def _p_value(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
