"""The application of a job that runs a program and does not state it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.records.applications import MOST_CHARACTERS, application_of
from adlro.records.payloads import Container, Payload, process_payload
from adlro.text import is_hidden

COMMANDS = {
    "python train.py --lr 1": "python:train.py",
    "/usr/bin/python3.11 /home/a/train.py": "python:train.py",
    "python3 -u -W ignore train.py": "python:train.py",
    "python -m pkg.train": "python:pkg.train",
    "python -um pkg.train --lr 1": "python:pkg.train",
    "python -Xdev -mpkg.train": "python:pkg.train",
    "python -c print(1)": "python",
    "python -uc print(1) train.py": "python",
    "python - train.py": "python",
    "python": "python",
    "python3.13t train.py": "python:train.py",
    "python -- train.py": "python:train.py",
    "torchrun --nproc-per-node 1 train.py": "torchrun:train.py",
    "torchrun --nproc-per-node=1 -m pkg.train": "torchrun:pkg.train",
    "python -m torch.distributed.run --nproc-per-node 1 /home/a/train.py": "torchrun:train.py",
    "accelerate launch --num_processes 2 train.py": "accelerate:train.py",
    "mpirun -np 4 ./solver": "mpirun",
    "bash -c anything": "bash",
    "bash -lc anything": "bash",
    "bash -o pipefail run.sh": "bash:run.sh",
    "./run.sh": "run.sh",
    "run.sh/": "run.sh",
    "env -u HOME A=b python train.py": "python:train.py",
    "nice -n 5 nohup timeout -s INT 10m python train.py": "python:train.py",
    "env": "env",
    "env A=b": "env",
    "Rscript --vanilla fit.R": "Rscript:fit.R",
    "Rscript -e 1": "Rscript",
    "java -cp a.jar -jar /opt/b.jar": "java:b.jar",
    "julia --project=. -t 4 fit.jl": "julia:fit.jl",
    "node --eval 1": "node",
    "gmx mdrun -s topol.tpr": "gmx",
    "/": "",
}


@pytest.mark.parametrize(("command", "application"), COMMANDS.items(), ids=COMMANDS)
def test_the_application_is_the_program_and_its_script(command, application):
    assert application_of(process_payload(command.split())) == application


@pytest.mark.parametrize(
    ("image", "argv", "application"),
    [
        ("docker.io/pytorch/pytorch:2.9", ("python", "train.py"), "pytorch/pytorch:2.9 python:train.py"),
        ("docker.io/library/python:3.13", (), "python:3.13"),
        ("registry.example.org:5000/a/b:1@sha256:0123", (), "registry.example.org:5000/a/b:1"),
        ("ubuntu", ("sleep", "1"), "ubuntu sleep"),
    ],
)
def test_the_application_of_a_container_begins_with_its_image(image, argv, application):
    assert application_of(Payload(container=Container(image, argv))) == application


def test_hidden_characters_are_replaced_and_long_names_stay_apart():
    assert application_of(process_payload(["python", "tra\x1b[2Jin\u202e.py"])) == "python:tra?[2Jin?.py"
    long = [application_of(process_payload(["python", "x" * 300 + end])) for end in ("a.py", "b.py")]
    assert len(set(long)) == 2
    assert {len(each) for each in long} == {MOST_CHARACTERS}


ARGUMENTS = st.one_of(st.text(), st.sampled_from(" ".join(COMMANDS).split()))


@given(st.lists(ARGUMENTS), st.one_of(st.none(), st.text()))
def test_every_command_has_a_legal_application(argv, image):
    payload = process_payload(argv) if image is None else Payload(container=Container(image, tuple(argv)))
    application = application_of(payload)
    assert len(application) <= MOST_CHARACTERS
    assert not any(is_hidden(each) for each in application)
    assert application == application_of(payload)


@given(st.lists(ARGUMENTS, min_size=1), st.lists(st.text()))
def test_arguments_after_a_script_change_nothing(before, after):
    commands = [process_payload(["python", "train.py", *arguments]) for arguments in (before, after)]
    assert {application_of(each) for each in commands} == {"python:train.py"}
