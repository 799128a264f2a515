"""Where a policy of one's own comes from: a class in a file, or the entry point of an installed package.

Loading runs the code, with the rights of this process. An error names the file, the line and the way out. Standard
library; what the code imports itself is its author's business.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from adlro.decide.policies.base import Policy
from adlro.errors import InvalidInput
from adlro.records.decisions import POLICY_GROUP

FIELD = "policy_file"
NAMES = re.compile(r"[a-z][a-z0-9_]{0,63}")
RESERVED = ("all", "none")
"""Words that options use beside names of policies."""
_ADLROS_OWN = ("judge", "scores", "act", "choose", "stopping")
"""Methods that no policy of one's own may replace: with these ADLRO keeps the limit on waits."""


@dataclass(frozen=True, slots=True)
class OwnSource:
    """The place of a policy's class; plain text, so that it can be sent to a worker process, which loads it again.

    Attributes:
        file: absolute path of its file; empty: it is an entry point of a package.
        class_name: of the class in the file; of an entry point its name.
    """

    file: str
    class_name: str

    @property
    def text(self) -> str:
        """For people: `mine.py:MyPolicy`, or `package: shortest (mypackage 1.0)`."""
        if self.file:
            return f"{self.file}:{self.class_name}"
        point = _points().get(self.class_name)
        named = f" ({point.dist.name} {point.dist.version})" if point is not None and point.dist is not None else ""
        return f"package: {self.class_name}{named}"


def source_of_file(text: str) -> OwnSource:
    """The source that `mine.py:MyPolicy` names.

    Raises:
        InvalidInput: it is not in that form, or there is no such file.
    """
    path, colon, class_name = text.rpartition(":")
    if not colon or not path or not class_name.isidentifier():
        raise InvalidInput(
            f"{FIELD}: '{text}' must be PATH:CLASS, such as mine.py:MyPolicy, the file and the policy's class in it",
            field=FIELD,
        )
    file = Path(path).expanduser().absolute()
    if "," in str(file):
        raise InvalidInput(
            f"{FIELD}: {file}: the path has a comma, which separates files in settings; rename it", field=FIELD
        )
    if not file.is_file():
        raise InvalidInput(f"{FIELD}: {file}: there is no such file; give PATH:CLASS", field=FIELD)
    return OwnSource(str(file), class_name)


def package_names() -> tuple[str, ...]:
    """The names of the policies that installed packages offer; none of their code is run."""
    return tuple(_points())


def source_of_package(name: str) -> OwnSource:
    """The source of an installed package's policy."""
    return OwnSource("", name)


def load(source: OwnSource, taken: frozenset[str]) -> type[Policy]:
    """The policy's class; runs its module, once in a process for each content of the file.

    Args:
        source: its place.
        taken: names that it must not have.

    Raises:
        InvalidInput: the code fails, there is no such class, or it is no policy; the message names file and line.
    """
    found = _class_of_file(source) if source.file else _class_of_package(source)
    _check(found, source, taken)
    return found


def digest_of(source: OwnSource) -> str:
    """A digest of the policy's code: its file and the modules beside it that it has imported; of a package its version.

    Twelve hexadecimal digits. It changes when the code does.
    """
    digest = hashlib.blake2b(source.class_name.encode(), digest_size=6)
    if not source.file:
        digest.update(source.text.encode())
        return digest.hexdigest()
    for file in sorted(_files(Path(source.file))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _files(file: Path, found: frozenset[Path] = frozenset()) -> frozenset[Path]:
    """A file, and those beside it that it imports, and so on."""
    found |= {file}
    for node in ast.walk(ast.parse(file.read_bytes())):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        for name in names:
            beside = file.parent / f"{name.partition('.')[0]}.py"
            if beside not in found and beside.is_file():
                found |= _files(beside, found)
    return found


def place_of(error: BaseException, source: OwnSource) -> str:
    """Where code of one's own raised: `mine.py, line 12`; the innermost line of its file, if it is on the way."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    folder = str(Path(source.file).parent) if source.file else ""
    own = [frame for frame in frames if frame.filename == source.file] or [
        frame for frame in frames if folder and str(Path(frame.filename).parent) == folder
    ]
    at = own[-1] if own else frames[-1] if frames and not source.file else None
    return source.text if at is None else f"{at.filename}, line {at.lineno}"


@functools.cache
def _points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=POLICY_GROUP)}


def _class_of_package(source: OwnSource) -> type[Policy]:
    point = _points().get(source.class_name)
    if point is None:
        raise InvalidInput(f"policy: no installed package offers '{source.class_name}'", field="policy")
    try:
        found = point.load()
    except (Exception, SystemExit) as error:
        raise InvalidInput(
            f"policy: {source.text}: {_told(error)}, at {place_of(error, source)}; mend or uninstall that package",
            field="policy",
        ) from error
    if isinstance(found, type) and issubclass(found, Policy) and getattr(found, "name", None) != point.name:
        raise InvalidInput(
            f"policy: {source.text}: its class has the name {getattr(found, 'name', None)!r}; the entry point and the "
            "class must have one name",
            field="policy",
        )
    return found  # type: ignore[no-any-return]  # _check looks at it


def _class_of_file(source: OwnSource) -> type[Policy]:
    try:
        content = Path(source.file).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{FIELD}: {source.file}: {error.strerror}", field=FIELD) from error
    module = _module(source, content)
    found = getattr(module, source.class_name, None)
    if found is None:
        there = [
            name
            for name, each in vars(module).items()
            if isinstance(each, type) and issubclass(each, Policy) and each.__module__ == module.__name__
        ]
        has = f"its policies are {', '.join(there)}" if there else "no subclass of Policy is defined there"
        raise InvalidInput(f"{FIELD}: {source.file} has no class {source.class_name}; {has}", field=FIELD)
    return found  # type: ignore[no-any-return]  # _check looks at it


def _module(source: OwnSource, content: bytes) -> ModuleType:
    """The file as a module; one for each content, under a name that no other module has."""
    name = f"adlro_policy_file_{hashlib.blake2b(source.file.encode() + content, digest_size=8).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_loader(name, loader=None, origin=source.file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = source.file
    # Modules beside the file can be imported, as by `python mine.py`; at the end, so that they hide nothing.
    if (folder := str(Path(source.file).parent)) not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module  # dataclasses look there for their module
    try:
        exec(compile(content, source.file, "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InvalidInput(
            f"{FIELD}: {place_of(error, source)}: {_told(error)}{_way_out(error)}", field=FIELD
        ) from error
    return module


def _told(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _way_out(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"; install it for the Python that runs ADLRO, {sys.executable}, or put it beside the file"
    return "; mend the file, and start again"


def _check(found: object, source: OwnSource, taken: frozenset[str]) -> None:
    def refuse(text: str) -> InvalidInput:
        return InvalidInput(f"{FIELD}: {source.text}: {text}", field=FIELD)

    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise refuse("is no policy; make it a subclass of adlro.decide.policies.Policy")
    name = found.__dict__.get("name")
    if not isinstance(name, str) or not NAMES.fullmatch(name):
        raise refuse(
            "give the class a name of its own of small letters, digits and underscores, at most 64, such as "
            f"name = 'shortest_first'; it has {name!r}"
        )
    if name in taken or name in RESERVED:
        raise refuse(f"the name '{name}' is taken by a policy or a word of ADLRO; give the class another name")
    if found.preferences is Policy.preferences and found.weigh is Policy.weigh:
        raise refuse("it decides nothing; give it a method preferences(self, observation), or weigh(self, observation)")
    for method in _ADLROS_OWN:
        if getattr(found, method) is not getattr(Policy, method):
            raise refuse(
                f"it replaces {method}, with which ADLRO keeps the limit on waits; use preferences or weigh instead"
            )
