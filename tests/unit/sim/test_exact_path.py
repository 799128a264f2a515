"""Between a seed and a list, a population, an estimate or a future, no function depends on the processor.

A walk over the syntax trees of the rooms on that path: what a C library, numpy's vector code or a matrix product may
round in its own way is written in `adlro.numeric.exact`, `normal` and `draws` alone. Names are looked at, not types.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

ROOMS = (
    "adlro/hardware",
    "adlro/numeric",
    "adlro/sim",
    "adlro/state",
    "adlro/workload",
    "adlro/lab/evaluate",
    "adlro/lab/learn",
    "adlro/decide",
    "services/orchestrator/clients.py",
    "services/decompose/hypervectors/codebook.py",
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS = _words(
    "exp exp2 expm1 log log2 log10 log1p logaddexp logaddexp2 pow power float_power cbrt hypot dist "
    "sin cos tan sinh cosh tanh asin acos atan atan2 asinh acosh atanh arcsin arccos arctan arctan2 arcsinh arccosh "
    "arctanh sinc i0 erf erfc gamma lgamma logspace geomspace "
    "dot vdot inner matmul vecdot matvec vecmat einsum tensordot kron convolve correlate cov corrcoef linalg fft "
    "polyfit sumprod"
)
"""Of `math` and `numpy`."""

DISTRIBUTIONS = _words(
    "normal standard_normal lognormal exponential standard_exponential gamma standard_gamma beta chisquare dirichlet "
    "poisson pareto weibull power binomial negative_binomial multinomial multivariate_normal geometric gumbel laplace "
    "logistic rayleigh standard_cauchy standard_t triangular vonmises wald zipf uniform"
)
"""Of numpy's generators; `random`, `integers`, `choice`, `permutation` are whole numbers and one multiplication."""

MODULES = frozenset({"cmath", "scipy", "statistics"})
METHODS = frozenset({"dot", "matmul"})

TABLES = "of Python's decimal numbers, which are rounded in one way only"
TAIL = "the one place: what lies in the tail is worked out again"
WHOLE = "of whole numbers"
ONLY_COMPARED = (
    "what is drawn with its help is a whole number: it differs only where two numbers are equal to the last bit"
)
STATISTIC = "a p-value for people, of which nothing is drawn"
EXCEPTIONS: dict[tuple[str, str, str], str] = {
    ("adlro/workload/capacity.py", "capacity_jobs_per_h", "scipy.optimize"): "the answer is rounded to CAPACITY_DIGITS",
    ("adlro/workload/capacity.py", "capacity_jobs_per_h", "scipy.sparse"): "only puts numbers in their places",
    ("adlro/numeric/draws.py", "standard_exponential", "standard_exponential"): TAIL,
    ("adlro/numeric/draws.py", "standard_exponentials", "standard_exponential"): TAIL,
    ("adlro/numeric/draws.py", "standard_normal", "standard_normal"): TAIL,
    ("adlro/numeric/draws.py", "standard_normals", "standard_normal"): TAIL,
    ("adlro/numeric/exact.py", "", "**"): TABLES,
    ("adlro/numeric/exact.py", "_pieces", "**"): TABLES,
    ("services/decompose/hypervectors/codebook.py", "__init__", "uniform"): "a method of its own, of whole numbers",
    ("adlro/state/observation.py", "byte_count", "sum"): WHOLE,
    ("adlro/lab/evaluate/evaluation.py", "evaluate", "sum"): WHOLE,
    ("adlro/lab/evaluate/resampling.py", "_counts", "multinomial"): ONLY_COMPARED,
    ("adlro/lab/evaluate/resampling.py", "paired_p_value", "scipy.stats"): STATISTIC,
    ("adlro/lab/evaluate/resampling.py", "regression", "scipy.stats"): STATISTIC,
    (
        "adlro/lab/learn/improve.py",
        "run_epoch",
        "**",
    ): "trains a network in torch, whose last bits nobody promises",
    ("adlro/lab/learn/policy_iteration.py", "decisions", "sum"): WHOLE,
    ("adlro/lab/learn/gang_worlds.py", "_draw_cluster", "dirichlet"): ONLY_COMPARED,
    ("adlro/lab/learn/gang_worlds.py", "_with_sizes", "dirichlet"): ONLY_COMPARED + ", and in a capacity of 10 digits",
    ("adlro/lab/learn/worlds.py", "_draw_cluster", "dirichlet"): ONLY_COMPARED,
    ("adlro/workload/demand.py", "_gang_shortage", "sum"): WHOLE,
    ("adlro/decide/policies/hungarian.py", "weigh", "scipy.optimize"): "adds, subtracts and compares",
}
"""(file, function, name): why."""


def found_in(source: str) -> Iterator[tuple[str, str]]:
    """(function, name) of everything that may depend on the processor, or on Python's version."""
    tree = ast.parse(source)
    functions: dict[ast.AST, str] = {}
    for node in ast.walk(tree):
        name = functions.get(node, "")
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            name = node.name
        for child in ast.iter_child_nodes(node):
            functions[child] = name
    for node in ast.walk(tree):
        where = functions.get(node, "")
        match node:
            case ast.Import(names=names):
                yield from ((where, each.name) for each in names if each.name.split(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module), names=names):
                if module.split(".")[0] in MODULES:
                    yield where, module
                if module.split(".")[0] in ("math", "numpy"):
                    yield from ((where, each.name) for each in names if each.name in FUNCTIONS)
            case ast.Attribute(value=ast.Name(id="np" | "numpy" | "math"), attr=attr) if attr in FUNCTIONS:
                yield where, attr
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in DISTRIBUTIONS | METHODS:
                yield where, attr
            case ast.Call(func=ast.Name(id="pow")):
                yield where, "pow"
            case ast.Call(func=ast.Name(id="sum"), args=[summed, *_]) if not _counts(summed):
                yield where, "sum"  # of floats it is another from Python 3.12 on
            case ast.BinOp(op=ast.MatMult()) | ast.AugAssign(op=ast.MatMult()):
                yield where, "@"
            case ast.BinOp(op=ast.Pow(), left=left, right=right) if not (_is_number(left) and _is_number(right)):
                yield where, "**"
            case ast.AugAssign(op=ast.Pow()):
                yield where, "**"
            case ast.keyword(arg="fastmath" | "parallel"):
                yield where, str(node.arg)
            case _:
                pass


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Constant)


def _counts(node: ast.expr) -> bool:
    """Whether whole numbers are summed: `1 for ...`, `len(...) for ...`, a comparison."""
    if not isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        return False
    match node.elt:
        case ast.Constant(value=int()) | ast.Compare() | ast.Call(func=ast.Name(id="len")):
            return True
    return False


def sources() -> Iterator[Path]:
    for room in ROOMS:
        path = ROOT / room
        assert path.exists(), room
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def test_no_function_on_the_path_depends_on_the_processor():
    found = {
        (str(path.relative_to(ROOT)), where, name)
        for path in sources()
        for where, name in found_in(path.read_text(encoding="utf-8"))
    }
    unknown = sorted(found - EXCEPTIONS.keys())
    assert not unknown, "take it from adlro.numeric.exact, normal or draws, or say here why it may stay:\n" + "\n".join(
        map(str, unknown)
    )
    assert not EXCEPTIONS.keys() - found, "exceptions that nothing needs any more"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("np.exp(x)", "exp"),
        ("numpy.log1p(x)", "log1p"),
        ("math.log(x)", "log"),
        ("from math import exp", "exp"),
        ("from statistics import NormalDist", "statistics"),
        ("import scipy.stats", "scipy.stats"),
        ("rng.standard_normal(3)", "standard_normal"),
        ("self._rng.exponential(2.0)", "exponential"),
        ("rng.uniform(0, 1)", "uniform"),
        ("a @ b", "@"),
        ("a.dot(b)", "dot"),
        ("np.linalg.norm(a)", "linalg"),
        ("x ** 0.5", "**"),
        ("x ** 2", "**"),
        ("x **= 2", "**"),
        ("pow(x, y)", "pow"),
        ("sum(x)", "sum"),
        ("sum(x * y for x, y in pairs)", "sum"),
        ("numba.njit(fastmath=True)", "fastmath"),
    ],
)
def test_the_walk_sees(line, name):
    assert list(found_in(line)) == [("", name)]
    assert list(found_in(f"def f():\n    {line}")) == [("f", name)]


@pytest.mark.parametrize(
    "line",
    ["2.0**-53", "exp(x)", "np.sqrt(x)", "x.sum()", "sum(1 for _ in x)", "math.fsum(x)", "rng.random()", "x * x"],
)
def test_the_walk_lets_pass(line):
    assert list(found_in(line)) == []
