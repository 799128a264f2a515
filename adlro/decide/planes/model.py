"""A network in an ONNX file, with its metadata. numpy and ONNX Runtime, no torch.

A network is only valid for the planes of its training: their table, the window, and the base policy's rule, whose costs
are among them. The metadata has all these, and a file that does not match this code is refused with the difference.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adlro.decide.gang_network import KEY as GANGS_KEY
from adlro.decide.gang_network import GangNetwork, network_from_text
from adlro.decide.hold_rule import HoldRule
from adlro.decide.planes.choice import Margins, choose
from adlro.decide.planes.compiled_network import WEIGHTS_KEY, CompiledNetwork
from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.layout import Float32s, Planes
from adlro.decide.planes.probe import probe_planes
from adlro.decide.planes.session import INPUTS, OUTPUTS, Runs, open_session
from adlro.decide.planes.table import table_digest
from adlro.errors import InvalidInput
from adlro.state.observation import Ints, Observation

FORMAT = "adlro-q-network/2"
UNITS = "Q and margins: each decision's own scale_s"
KEY = "adlro"
"""Key of the metadata in the ONNX file."""

MOST_BYTES = 2_000_000

_PROBES, _AGREEMENT = 8, 1e-4
"""Number of made-up decisions, and the tolerance between compiled code and ONNX Runtime: relative to the highest Q if
that is above 1. The order of sums alone differs by 1e-6."""


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The metadata of the weights.

    Attributes:
        rule: parameters of the base policy.
        window: number of jobs in the window.
        margins: margins of the gate.
        recipe: the training's recipe.
        seed: the training's seed.
        commit: commit of the code that trained it.
        format, units, planes: equal to this code's; planes is the digest of their table.
        training: further facts (the model card has them in words): command, steps, hours, scores.
    """

    rule: HoldRule
    window: int
    margins: Margins = field(default_factory=Margins)
    recipe: str = ""
    seed: int = 0
    commit: str = ""
    format: str = FORMAT
    units: str = UNITS
    planes: str = field(default_factory=table_digest)
    training: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The JSON text in the file."""
        return json.dumps(dataclasses.asdict(self) | {"rule": self.rule._asdict()}, sort_keys=True)


def metadata_from_json(text: str, source: str) -> ModelMetadata:
    """Parses a file's metadata, and checks that it matches this code.

    Args:
        text: as written by `ModelMetadata.to_json`.
        source: the file's name in errors.

    Raises:
        InvalidInput: a field is missing, or differs; the message names it.
    """
    try:
        said: dict[str, Any] = json.loads(text)
        wanted = {"format": FORMAT, "units": UNITS, "planes": table_digest()}
        for name, value in wanted.items():
            if said[name] != value:
                raise InvalidInput(
                    f"{source}: the model's {name} is '{said[name]}', and this version of ADLRO works with '{value}': "
                    "train it again (adlro train), or take a model of this version",
                    field=name,
                )
        rule = HoldRule(**{name: float(figure) for name, figure in said.pop("rule").items()})
        margins = Margins(**{name: float(figure) for name, figure in said.pop("margins").items()})
        if not np.isfinite((*rule, *dataclasses.astuple(margins))).all():
            raise ValueError("a figure of its rule or margins is no number")
        return ModelMetadata(rule=rule, margins=margins, **said)
    except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            f"{source}: its metadata '{KEY}' cannot be read ({error!r}): not a model of ADLRO, or a damaged one",
            field="metadata",
        ) from error


class OnnxModel:
    """A network that decides; one per thread (it has scratch memory for its planes).

    Compiled code computes a single decision of few GPUs and pairs from the weights in the file's metadata; ONNX Runtime
    computes larger ones, batches, and networks without such weights (docs/decisions/0007-compiled-decisions.md).

    Args:
        model: path of the file, or its bytes.
        threads: number of ONNX Runtime's threads; more than one helps only with hundreds of GPUs.

    Attributes:
        metadata: the file's metadata.
        gangs: the network for decisions where jobs of several GPUs wait; None: the file has none.

    Raises:
        InvalidInput: no such file, no model, or metadata that do not match this code.
    """

    def __init__(self, model: Path | str | bytes, *, threads: int = 1) -> None:
        source = "the model" if isinstance(model, bytes) else str(model)
        content = model if isinstance(model, bytes) else _read(Path(model))
        try:
            session = open_session(content, threads)
        except Exception as error:  # ONNX Runtime has a dozen exceptions, without another common base
            raise InvalidInput(f"{source}: not an ONNX model that can be run: {error}", field="model") from error
        stated = session.get_modelmeta().custom_metadata_map
        self.metadata = metadata_from_json(stated.get(KEY, "{}"), source)
        inputs = tuple(each.name for each in session.get_inputs())
        outputs = tuple(each.name for each in session.get_outputs())
        flat = all(len(each.shape) == 1 for each in session.get_outputs())
        if not set(inputs) <= set(INPUTS) or outputs != OUTPUTS or not flat:
            raise InvalidInput(
                f"{source}: it takes {', '.join(inputs)} and gives {', '.join(outputs)}, not {', '.join(OUTPUTS)}",
                field="model",
            )
        self._runs = Runs(session)
        self._inputs = inputs
        self._filler = PlaneFiller(self.metadata.rule, self.metadata.window)
        self.gangs: GangNetwork | None = None
        if GANGS_KEY in stated:
            self.gangs = network_from_text(stated[GANGS_KEY], source)
        self._compiled: CompiledNetwork | None = None
        if WEIGHTS_KEY in stated:
            self._compiled = self._checked(stated[WEIGHTS_KEY], source)

    @property
    def compiled(self) -> bool:
        """Whether compiled code computes single decisions."""
        return self._compiled is not None

    def planes(self, observation: Observation) -> Planes:
        """The planes of N decisions."""
        return self._filler.fill(observation)

    def q(self, planes: Planes) -> tuple[Float32s, Float32s]:
        """(P,) Q of the pairs, (N,) of holding."""
        if not len(planes.pairs):
            # No pair is possible: a hold has no alternative.
            return np.zeros(0, dtype=np.float32), np.zeros(len(planes.base), dtype=np.float32)
        if self._compiled is not None and self._compiled.is_for(planes):
            return self._compiled.q(planes)
        return self.q_of_runtime(planes)

    def q_of_runtime(self, planes: Planes) -> tuple[Float32s, Float32s]:
        """The same by ONNX Runtime, for any number of decisions."""
        q_pairs, q_hold = self._runs.run({name: getattr(planes, name) for name in self._inputs})
        return q_pairs, q_hold

    def stop(self) -> None:
        """Stops ONNX Runtime's runs in all threads: a network that does not answer would use a core for ever."""
        self._runs.stop()

    def _checked(self, weights: str, source: str) -> CompiledNetwork | None:
        """The compiled network, if it gives ONNX Runtime's results; None: those are not finite.

        Raises:
            InvalidInput: the weights can't be read, or give other results.
        """
        try:
            network = CompiledNetwork(weights)
            for probe in map(probe_planes, range(_PROBES)):
                ours, theirs = (np.concatenate(found) for found in (network.q(probe), self.q_of_runtime(probe)))
                most = float(np.abs(theirs).max())
                if not np.isfinite(most):
                    return None
                if not np.abs(ours - theirs).max() <= _AGREEMENT * max(most, 1.0):
                    raise ValueError("its network says something else")
        except Exception as error:  # ONNX Runtime's errors have no common base
            raise InvalidInput(
                f"{source}: the weights in its metadata '{WEIGHTS_KEY}' are of no use ({error}): a damaged file, or "
                "one that was changed by hand",
                field="metadata",
            ) from error
        return network

    def act(self, observation: Observation) -> Ints:
        """(N, 2) the job's and the GPU's place in the observation, or (HOLD, HOLD)."""
        planes = self.planes(observation)
        return choose(planes, *self.q(planes), self.metadata.margins)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}", field="model") from error
