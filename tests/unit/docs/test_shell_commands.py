"""Every command on the pages is one that exists: of the fences all words of it, in sentences its name and its options.

What is checked, by the first word:

- `adlro`: the command's own parser takes the line: command, options, their values by type, the number of arguments.
- `docker compose`: services and the profile exist in compose.yaml; `run adlro ...` is parsed as above.
- `make`: the target exists. `python -m`: the module does; `python FILE` and `node FILE`: the file does.
- `pip install`: the extra exists. `npm install`: package.json pins the packages; `npm run`: the script is there.
- variables `ADLRO_*` before a command or behind `export`: a setting, or a key of the command.
- the programs of `PLAIN`: nothing. Any other first word fails the test.

None of them is run here. Tests that run lines of a page say so in `RUN`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from adlro.cli.app import app
from adlro.kit.settings import HOST_SERVICES, SERVICES, known_keys
from tests.unit.docs.shell_lines import PAGES, ROOT, commands, fences, mentions, script_options, split
from tools.generate_settings_page import CLIENT_KEYS, settings_of

# Programs that are not ours, and of which nothing is checked.
PLAIN = frozenset(
    {".", "buf", "cat", "cd", "chmod", "cp", "echo", "export", "git", "go", "mkdir", "openssl", "tensorboard"}
)
# Sections whose commands are run as they stand there, and by which test; all others are only parsed.
RUN = {
    ("docs/coming_from.md", "Submitting"): "tests/e2e/test_coming_from.py",
    ("docs/coming_from.md", "Reading"): "tests/e2e/test_coming_from.py",
    ("docs/coming_from.md", "Changing"): "tests/e2e/test_coming_from.py",
    ("docs/grpc.md", "With buf curl"): "tests/e2e/test_grpc_page.py",
    ("docs/grpc.md", "With JavaScript"): "tests/e2e/test_grpc_page.py",
    ("docs/grpc.md", "With Go"): "tests/e2e/test_grpc_page.py",
    ("docs/jobs.md", "When a job starts"): "tests/e2e/test_guide_lines.py",
    ("docs/jobs.md", "Arrays"): "tests/e2e/test_guide_lines.py",
    ("docs/reading.md", "Jobs"): "tests/e2e/test_guide_lines.py",
    ("docs/reading.md", "Nodes and GPUs"): "tests/e2e/test_guide_lines.py",
    ("docs/reading.md", "The suite and its policies"): "tests/e2e/test_guide_lines.py",
    ("docs/reading.md", "Usage"): "tests/e2e/test_guide_lines.py",
    ("docs/operators_guide.md", "Limits and quotas"): "tests/e2e/test_guide_lines.py",
    ("docs/operators_guide.md", "Jobs of others"): "tests/e2e/test_guide_lines.py",
    ("docs/operators_guide.md", "Policies"): "tests/e2e/test_guide_lines.py",
    ("docs/operators_guide.md", "Maintenance of a node"): "tests/e2e/test_guide_lines.py",
    ("docs/operators_guide.md", "Backup"): "tests/e2e/test_backup_page.py",
    ("docs/security.md", "Turned on"): "tests/e2e/test_security_page.py",
    ("docs/users_guide.md", ""): "tests/e2e/test_guide_lines.py",  # the lines before the first heading
}
# Decisions tell of the commands of their day.
PRESENT = [page for page in PAGES if page.parent.name != "decisions"]
LABORATORY = {"evaluate": "adlro.lab.evaluate.command", "train": "adlro.lab.learn.train"}
COMPOSE = [yaml.safe_load((ROOT / file).read_text())["services"] for file in ("compose.yaml", "compose.secure.yaml")]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def name(page: Path) -> str:
    """A page's name in the names of tests."""
    return str(page.relative_to(ROOT))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that commands name: parsers read job files, and look whether traces are there."""
    files = [fence.text for fence in fences(ROOT / "docs" / "jobs.md") if fence.language == "yaml"]
    (tmp_path / "job.yaml").write_text(files[0])
    (tmp_path / "jobs.yaml").write_text(files[1])
    (tmp_path / "jobs.csv").touch()
    monkeypatch.chdir(tmp_path)


def problem(words: Sequence[str]) -> str:
    """What is wrong with a command; empty for nothing."""
    match list(words):
        case ["adlro" | ".venv/bin/adlro", *rest]:
            return parse_problem(rest)
        case ["docker", "compose", *rest]:
            return compose_problem(rest)
        case ["make", *rest]:
            unknown = [word for word in rest if "=" not in word and word not in TARGETS]
            return f"make has no target {unknown[0]}" if unknown else ""
        case ["python", "-m", module, *_]:
            return "" if importlib.util.find_spec(module) else f"there is no module {module}"
        case ["python" | "node", file, *_]:
            return "" if (ROOT / file).exists() else f"there is no file {file}"
        case ["pip", "install", *rest]:
            named = {extra for word in rest for extra in re.findall(r"\[(\w+)\]", word)}
            return f"there is no extra {min(named - EXTRAS)}" if named - EXTRAS else ""
        case ["npm", "install", *packages]:
            unknown = [each for each in packages if f'"{each}":' not in (ROOT / "package.json").read_text()]
            return f"package.json does not pin {unknown[0]}" if unknown else ""
        case ["npm", "run", script]:
            return "" if f'"{script}":' in (ROOT / "package.json").read_text() else f"npm has no script {script}"
        case [program, *_] if program in PLAIN:
            return ""
    return f"unknown program {words[0]}: check it here, or add it to PLAIN"


@cache
def command_of(name: str) -> Any:
    """The parser of `adlro`, or of a command that hands all of its arguments to the laboratory."""
    return get_command(app if name == "adlro" else importlib.import_module(LABORATORY[name]).app)


def parse_problem(arguments: list[str]) -> str:
    """What the command's own parser says about its arguments; it runs nothing."""
    context: typer.Context | None = None
    command = command_of("adlro")
    if arguments and arguments[0] in LABORATORY:
        command, arguments = command_of(arguments[0]), arguments[1:]
    try:
        while True:
            context = command.make_context(command.name or "adlro", arguments, parent=context)
            if not isinstance(command, TyperGroup):
                return ""
            left = [*context._protected_args, *context.args]
            _, command, arguments = command.resolve_command(context, left)
    except typer.Exit:  # --help
        return ""
    except TyperException as error:
        return str(error)


def compose_problem(arguments: list[str]) -> str:
    """Whether what is named exists in compose.yaml, and what adlro says of its own arguments."""
    services = {name for file in COMPOSE for name in file}
    match [word for word in arguments if word not in ("--rm", "--wait", "-f")]:
        case ["run", "adlro", *rest]:
            return parse_problem(rest)
        case ["run" | "logs" | "build" | "restart", *named]:
            unknown = [word for word in named[:1] if word not in services]
            return f"compose.yaml has no service {unknown[0]}" if unknown else ""
        case ["--profile", profile, "up"]:
            known = {each for file in COMPOSE for service in file.values() for each in service.get("profiles", ())}
            return "" if profile in known else f"compose.yaml has no profile {profile}"
        case ["up", *rest]:
            scaled = {word.partition("=")[0] for word in rest if "=" in word}
            return f"compose.yaml has no service {min(scaled - services)}" if scaled - services else ""
        case ["down" | "port" | "build", *_]:
            return ""
    return f"unknown command of docker compose: {arguments}"


def mention_problem(words: Sequence[str]) -> str:
    """Whether the command and its options exist; a mention may lack arguments, and have placeholders."""
    if words[0] == "xargs":
        words = words[1:]
    if not parse_problem(list(words[1:])):
        return ""
    command = command_of("adlro")
    rest = list(words[1:])
    path = ["adlro"]
    while isinstance(command, TyperGroup):
        while rest and rest[0].startswith("-"):  # options of adlro itself
            rest.pop(0)
        if not rest or not re.fullmatch(r"[a-z-]+", rest[0]):
            return ""
        path.append(rest.pop(0))
        found = command.commands.get(path[-1])
        if found is None:
            return f"there is no command {' '.join(path)}"
        command = command_of(path[-1]) if path[-1] in LABORATORY else found
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    for word in rest:
        option = word.partition("=")[0]
        if word == "--":
            break
        if re.fullmatch(r"--[a-z-]+", option) and option not in known:
            return f"{' '.join(path)} has no option {option}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_fence_says_what_it_holds(page: Path) -> None:
    known = {"sh", "console", "text", "python", "yaml", "toml", "javascript", "go", "json"}
    assert [(fence.line, fence.language) for fence in fences(page) if fence.language not in known] == []
    for fence in fences(page):
        if fence.language == "python":
            compile(fence.text, f"{page}:{fence.line}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        elif fence.language == "yaml":
            yaml.safe_load(fence.text)
        elif fence.language == "toml":
            tomllib.loads(fence.text)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_in_a_fence_is_taken_by_its_parser(page: Path) -> None:
    found = (*commands(page), *script_options(page))
    assert {str(command): said for command in found if (said := problem(command.words))} == {}


@pytest.mark.parametrize("page", PRESENT, ids=name)
def test_every_command_in_a_sentence_exists_with_its_options(page: Path) -> None:
    assert {str(command): said for command in mentions(page) if (said := mention_problem(command.words))} == {}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_variable_of_ours_exists(page: Path) -> None:
    known = {key for service in (*SERVICES, *HOST_SERVICES) for key in known_keys(settings_of(service))} | set(
        CLIENT_KEYS
    )
    named = {key for fence in fences(page) for key in re.findall(r"\b(ADLRO_[A-Z_]+)=", fence.text)}
    assert named - known == set()


def test_the_tests_that_run_a_page_read_it() -> None:
    for (page, heading), test in RUN.items():
        assert not heading or f"\n## {heading}\n" in (ROOT / page).read_text()
        assert Path(page).name in (ROOT / test).read_text(), test


def test_enough_is_found() -> None:
    found = [command for page in PAGES for command in commands(page)]
    assert len([command for command in found if command.words[0].endswith("adlro")]) > 80
    assert len([each for page in PAGES for each in mentions(page)]) > 200


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("adlro queue --sort -wait", ""),
        ("adlro submit --gpus 2 -- torchrun --nnodes 2 train.py", ""),
        ("adlro describe job job-17", ""),
        ("adlro quue", "No such command 'quue'"),
        ("adlro queue --srt wait", "No such option: --srt"),
        ("adlro submit --gpus many -- true", "unable to parse string as an integer"),
        ("adlro describe job", "Missing parameter: job_id"),
        ("adlro evaluate --load 0.9 --seed 3", ""),
        ("adlro evaluate --laod 0.9", "No such option: --laod"),
        ("adlro train", "Missing parameter"),
        ("make dmo", "make has no target dmo"),
        ("python -m benchmarks.nothing", "there is no module benchmarks.nothing"),
        ("pip install '.[laboratory]'", "there is no extra laboratory"),
        ("docker compose run --rm adlro quue", "No such command 'quue'"),
        ("docker compose logs -f workloads", "compose.yaml has no service workloads"),
        ("adrlo queue", "unknown program adrlo"),
    ],
)
def test_what_is_wrong_is_found(line: str, said: str) -> None:
    (words,) = split(line)
    found = problem(words)
    assert said in found
    assert bool(said) == bool(found)


def test_lines_are_split_as_a_shell_does() -> None:
    line = "export A=1 B='2 3'; C=4 adlro up --port 0 > file && git clone <this repository> adlro | cat  # a comment; x"
    assert list(split(line)) == [
        ("export", "A=1", "B=2 3"),
        ("adlro", "up", "--port", "0"),
        ("git", "clone", "this-repository", "adlro"),
        ("cat",),
    ]


@pytest.mark.parametrize(
    ("mention", "said"),
    [
        ("adlro policy NAME", ""),
        ("adlro up --cluster local", ""),
        ("adlro submit --", ""),
        ("adlro polcy NAME", "there is no command adlro polcy"),
        ("adlro up --clster local", "adlro up has no option --clster"),
    ],
)
def test_what_is_wrong_in_a_sentence_is_found(mention: str, said: str) -> None:
    assert mention_problem(mention.split()) == said
