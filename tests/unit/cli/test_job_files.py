"""Job files and `#ADLRO` lines: what is read, and what is refused with its line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.cli.job_file import KEYS, read_job_file
from adlro.cli.script_options import GivenOptions, read_script, script_argv
from adlro.errors import InvalidInput


def words(text: str) -> list[str]:
    return [word for each in read_job_file(text, "job.yaml").options for word in each.words]


def test_a_job_file_is_words_of_the_command_line() -> None:
    read = read_job_file(
        """\
# a comment
name: train
type: ml
cores: 4
gpu_memory: 20GiB
time_limit: 01:00:00
priority: 0.75
env:
  LR: 1e-3
  FLAG: no
  HOME_OF_DATA:
  EMPTY: ""
labels: {team: vision, "odd": }
secrets: [API_KEY]
mounts:
  - /data:/data:ro
command: [python, train.py, --epochs, 3]
""",
        "job.yaml",
    )
    assert read.command == ("python", "train.py", "--epochs", "3")
    assert [word for each in read.options for word in each.words] == [
        *["--name=train", "--type=ml", "--cores=4", "--gpu-memory=20GiB", "--time-limit=01:00:00", "--priority=0.75"],
        *[
            "--env=LR=1e-3",
            "--env=FLAG=no",
            "--env=HOME_OF_DATA",
            "--env=EMPTY=",
            "--label=team=vision",
            "--label=odd=",
        ],
        *["--secret=API_KEY", "--mount=/data:/data:ro"],
    ]
    assert [each.line for each in read.options] == [2, 3, 4, 5, 6, 7, 8, 13, 14, 15]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("preemptible: {restart: 60s, lost: 10m, grace: -2m}", ["--preemptible", "--restart=60s", "--lost=10m"]),
        ("preemptible: {}", ["--preemptible"]),
        ("preemptible: true", ["--preemptible"]),
        ("preemptible: no", ["--no-preemptible"]),
        ("shareable: Yes", ["--shareable"]),
        ("shareable: off", ["--no-shareable"]),
    ],
)
def test_whether_a_job_may_be_stopped_or_share(text: str, expected: list[str]) -> None:
    found = words(text)
    assert found == expected + (["--preempt-grace=-2m"] if "grace" in text else [])


def test_a_text_as_command_is_run_by_a_shell() -> None:
    assert read_job_file("command: |\n  cd data\n  sort a | uniq\n", "j").command == (
        *("/bin/sh", "-c"),
        "cd data\nsort a | uniq\n",
    )


@pytest.mark.parametrize("value", ["yes", "1:30", "0o10", "2026-01-01", "1_000", ".5"])
def test_values_are_the_texts_that_stand_there(value: str) -> None:
    assert words(f"name: {value}") == [f"--name={value}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "j:1: must be a mapping of options"),
        ("- a", "j:1: must be a mapping of options"),
        ("just text", "j:1: must be a mapping of options"),
        ("name: a\ncoers: 4", "j:2: there is no key 'coers'; do you mean cores?"),
        ("gpu-memory: 4G", "j:1: there is no key 'gpu-memory'; do you mean gpu_memory?"),
        ("zzzzzz: 4", "j:1: there is no key 'zzzzzz'; there are after, application, array, begin, "),
        ("name: a\n\nname: b", "j:3: 'name' is there twice, first in line 1"),
        ("name:", "j:1: name: must be one value"),
        ("name: [a]", "j:1: name: must be one value"),
        ("env: [A=b]", "j:1: env: must be a mapping"),
        ("env:\n  A: [b]", "j:1: env: line 2: A must be one value"),
        ("secrets: A", "j:1: secrets: must be a list"),
        ("mounts:\n- a:b\n- {a: b}", "j:1: mounts: line 3: each entry must be one value"),
        ("command: {a: b}", "j:1: command: must be a list of the program and its arguments, or a text for"),
        ("command: []", "j:1: command: must name a program"),
        ("command:", "j:1: command: must be a list"),
        ("preemptible:", "j:1: preemptible: must be true, false, or what a stop costs, such as {restart: 60s, lost"),
        ("preemptible: 60s", "j:1: preemptible: must be true, false, or what a stop costs"),
        ("preemptible: [60s]", "j:1: preemptible: must be true, false, or what a stop costs"),
        (
            "preemptible:\n  restrt: 60s",
            "j:1: preemptible: line 2: there is no 'restrt'; there are restart, lost, grace",
        ),
        ("preemptible: {lost: [1]}", "j:1: preemptible: line 1: lost must be one value, such as 60s"),
        ("shareable: maybe", "j:1: shareable: must be true or false"),
        ("shareable:", "j:1: shareable: must be true or false"),
        ("a: b: c", "j:1: is no YAML: mapping values are not allowed here"),
        ("name: a\n\tcores: 4", "j:2: is no YAML: found character"),
        ("name: a\n---\nname: b", "j:2: is no YAML: but found another document"),
        ("name: *nowhere", "j:1: is no YAML: found undefined alias"),
        ("name: \x07", "j: is no YAML: unacceptable character #x0007"),
        ("name: !!python/object/apply:os.system [echo]", "j:1: has the tag 'tag:yaml.org,2002:python/object/apply:os"),
        ("name: !mine a", "j:1: has the tag '!mine'; job files have plain values only"),
        ("? [a]\n: b", "j:1: a key must be a plain text"),
        ("mounts: &a [*a]", "j:1: is nested too deeply"),
        ("mounts: " + "[" * 5000, "is nested too deeply for a job file"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_job_file(text, "j")
    assert message in refused.value.message


def test_aliases_that_multiply_cost_no_more_than_the_file() -> None:
    many = ", ".join(["*a"] * 20_000)
    with pytest.raises(InvalidInput, match="mounts: line 1: each entry must be one value"):
        read_job_file(f"command: &a [{', '.join('x' * 20_000)}]\nmounts: [{many}]", "j")


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_job_file(text, "j")
    except InvalidInput as error:
        assert error.message.startswith("j:")  # noqa: PT017  # most texts are refused, some are not


@given(st.dictionaries(st.from_regex(r"[A-Z]{1,8}", fullmatch=True), st.text("abc=: #'\"\\\né", max_size=20)))
def test_any_value_reaches_the_command_line(variables: dict[str, str]) -> None:
    import json

    read = read_job_file(json.dumps({"env": variables}), "j")  # YAML reads JSON
    assert [each for given in read.options for each in given.words] == [f"--env={k}={v}" for k, v in variables.items()]


def test_every_key_is_an_option() -> None:
    assert {"command", "name", "gpu_memory", "env", "stop_grace"} <= set(KEYS)


SCRIPT = """\
#!/bin/sh
#ADLRO --cores 4 --time-limit 1h
# a comment
#SBATCH --ignored

#ADLRO --name "two words"   # why
#ADLROX --no-option
  #ADLRO --work 7
echo $1
#ADLRO --too-late
"""


def test_options_in_a_scripts_head() -> None:
    script = read_script(SCRIPT, "job.sh")
    assert script.interpreter == ("/bin/sh",)
    assert script.options == (
        GivenOptions(2, ("--cores", "4", "--time-limit", "1h")),
        GivenOptions(6, ("--name", "two words")),
        GivenOptions(8, ("--work", "7")),
    )
    assert script.unread_lines == (10,)
    assert script_argv(script, "/a/job.sh", ["x", "-y"]) == ("/bin/sh", "/a/job.sh", "x", "-y")


def test_the_interpreter_is_split_as_the_kernel_does() -> None:
    assert read_script("#! /usr/bin/env -S python3 -u \n", "s").interpreter == ("/usr/bin/env", "-S python3 -u")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s:1: must name the script's interpreter, such as #!/bin/sh"),
        ("echo", "s:1: must name the script's interpreter"),
        ("#!\n", "s:1: must name the script's interpreter"),
        ("#!/bin/sh\r\necho\r\n", "s:1: lines end with CR LF"),
        ("#!/bin/sh\n#ADLRO --name 'a\n", "s:2: no closing quotation: --name 'a"),
    ],
)
def test_what_is_wrong_with_a_script_is_named(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_script(text, "s")
    assert message in refused.value.message
