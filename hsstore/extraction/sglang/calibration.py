"""Proving, before the first sample, which layers and which norm a server returns.

One short prompt, alone on the server, asked again whole and in part. Its answer is held against
transformers on the same weights where those are at hand, else against itself; then against what
earlier calibrations of the store kept of it. What is found goes into the store.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hsstore.capture.layer_ids import UnknownLayerIds, engine_ids, was_seen
from hsstore.errors import IdentityMismatch, SourceUnavailable
from hsstore.extraction.sglang import reference as references
from hsstore.extraction.sglang import structure
from hsstore.extraction.sglang.sketch import as_recorded, from_record, sketch
from hsstore.extraction.sglang.transport import ENGINE, Ask
from hsstore.integrity.auditing.likeness import (
    Rows,
    agreement,
    distance,
    relative_errors,
    values_of,
)
from hsstore.model import commands
from hsstore.model.calibration import Agreement, Calibration, Engine, Method, norm_of
from hsstore.model.document import timestamp
from hsstore.model.identity import StoreIdentity
from hsstore.storage.calibrations import calibrations, next_number, publish_calibration
from hsstore.storage.store import Store

PROMPT_TOKENS = 48

# Relative error of the middle row between two answers of one model. In 16 bits, other kernels make
# 0.015 to 0.025. One of SmolLM2's 30 blocks with a fifth of its weights' spread added as noise
# makes 0.10 to 0.20, with a twentieth 0.02 to 0.05, which cannot be told from kernels.
NOISE = {"float32": 5e-3, "bfloat16": 0.06, "float16": 0.06}
# Of any row, between two answers of one server to one prompt that is alone on it.
UNSTABLE = {"float32": 5e-3, "bfloat16": 0.25, "float16": 0.25}


class ServerFacts(Protocol):
    """What a calibration needs to know of a server; the client's Facts has it."""

    @property
    def release(self) -> str:
        """SGLang's release."""
        ...

    @property
    def model_path(self) -> str:
        """Where its model is, on its machine."""
        ...

    @property
    def architectures(self) -> tuple[str, ...]:
        """The classes that the model's config names."""
        ...

    @property
    def aux_layer_ids(self) -> tuple[int, ...] | None:
        """The ids of the layers that it was launched to return by JSON."""
        ...


def make_calibrator(
    store: Store,
    reference: str | None,
    note: Callable[[str], None],
    *,
    spool: bool,
    recording: bool = True,
) -> Callable[[Ask, ServerFacts], None]:
    """What a source calls for every server before it believes it.

    ``reference`` is a model to compare with, in transformers; without one, the server's own model
    folder is taken where it is here, the store's and small. ``note`` is told what was found;
    ``spool`` tells that states come through the capture plugin. Without ``recording`` the server is
    proved all the same, but nothing is written into the store. The calibrator raises
    IdentityMismatch where the server is not what the store needs, SourceUnavailable or
    MalformedInput where the reference cannot be had, InvalidDocument for a damaged record.
    """

    def calibrate(ask: Ask, facts: ServerFacts) -> None:
        calibration = _Calibration(store, ask, facts, note, spool=spool, recording=recording)
        calibration.run(reference)

    return calibrate


def engine_of(identity: StoreIdentity, facts: ServerFacts, *, spool: bool) -> Engine:
    """What a calibration keeps of a server: with its ids of the store's layers, in their order.

    The plugin is given layers by our names and asks for the ids that ``layer_ids`` knows.
    IdentityMismatch where a server has no ids for the store's layers.
    """
    numbered = sorted(layer for layer in identity.capture.layers if isinstance(layer, int))
    try:
        if spool and numbered:
            ids = engine_ids(facts.architectures[0], numbered, identity.model.num_layers)
        else:
            ids = tuple(sorted(facts.aux_layer_ids or ()))
        own = dict(zip(numbered, ids, strict=True))
    except (UnknownLayerIds, IndexError, ValueError) as error:
        raise IdentityMismatch(
            f"calibration: no ids of the layers {identity.capture.layers_text()}: {error}",
            place=f"{ENGINE} {facts.release}",
        ) from None
    layers = tuple(
        own[layer] if isinstance(layer, int) else layer for layer in identity.capture.layers
    )
    return Engine(ENGINE, facts.release, "spool" if spool else "json", layers)


def prompt_of(store: Store) -> NDArray[np.int32]:
    """The prompt of a store without calibrations: int32 [PROMPT_TOKENS].

    These are its own first tokens, over again where there are fewer: text as the model knows it,
    and no id outside its vocabulary.
    """
    found = np.empty(0, np.int32)
    for shard in range(store.plan.shards):
        found = np.concatenate([found, store.tokens(shard).input_ids[:PROMPT_TOKENS]])
        if len(found) >= PROMPT_TOKENS:
            break
    return np.resize(found, PROMPT_TOKENS)


class _Calibration:
    """One server's, against one store."""

    def __init__(
        self,
        store: Store,
        ask: Ask,
        facts: ServerFacts,
        note: Callable[[str], None],
        *,
        spool: bool,
        recording: bool,
    ) -> None:
        self.store = store
        self.identity = store.identity
        self.layers = store.identity.capture.layers
        self.dtype = store.identity.capture.dtype
        self.ask = ask
        self.facts = facts
        self.note = note
        self.recording = recording
        self.engine = engine_of(store.identity, facts, spool=spool)
        self.answers: dict[tuple[int, ...], Rows] = {}

    def run(self, reference: str | None) -> None:
        known = calibrations(self.store)
        prompt = np.array(known[0].input_ids, np.int32) if known else prompt_of(self.store)
        states = self._stable_answer(prompt)
        self._compare(known)
        model = Path(reference) if reference else self._at_hand()
        if not self._is_settled(known, "reference" if model else "structure"):
            found = self._prove(states, prompt, model, asked=reference is not None)
            if self.recording:
                self._publish(found)
            else:
                self.note(_told(found))

    # -- asking --------------------------------------------------------------------------------

    def _stable_answer(self, prompt: NDArray[np.int32]) -> Rows:
        """The states of the prompt, the same whenever it is asked, whole or in part."""
        states = self._answer(prompt)
        self.answers[tuple(prompt.tolist())] = states
        part = prompt[: -(-len(prompt) * 3 // 5)]
        for ids, what in ((prompt, "asked twice"), (part, "asked in part")):
            again = self._answer(ids)
            for column, layer in enumerate(self.layers):
                errors = relative_errors(again[:, column], states[: len(ids), column])
                odd = int(errors.argmax())
                if errors[odd] > UNSTABLE[self.dtype]:
                    told = f"token {odd} of layer {layer} is off by {errors[odd]:.2g}"
                    self._refuse([f"the prompt {what} gives other states: {told}"])
        return states

    def _answer(self, ids: NDArray[np.int32]) -> Rows:
        states = self.ask(ids)
        expected = (len(ids), len(self.layers), self.identity.model.hidden_size)
        if states.shape != expected:
            self._refuse([f"its states have the shape {states.shape}, not {expected}"])
        values = values_of(states)
        bad = np.flatnonzero(~np.isfinite(values).all(axis=(0, 2)))
        self._refuse(f"layer {self.layers[n]} holds NaN or infinity" for n in bad)
        return values

    def _answered(self, ids: tuple[int, ...]) -> Rows:
        if ids not in self.answers:
            self.answers[ids] = self._answer(np.array(ids, np.int32))
        return self.answers[ids]

    # -- judging -------------------------------------------------------------------------------

    def _compare(self, known: Iterable[Calibration]) -> None:
        """Refuse states that are not those which earlier calibrations kept a sketch of."""
        noise = NOISE[self.dtype]
        for earlier in known:
            own, kept = sketch(self._answered(earlier.input_ids)), from_record(earlier.sketch)
            errors = [distance(mine, theirs) for mine, theirs in zip(own, kept, strict=True)]
            worst = int(np.argmax(errors))
            if errors[worst] > noise:
                told = f"layer {self.layers[worst]} is off by {errors[worst]:.2g}"
                self._refuse([
                    f"other weights or layers than at {earlier.name}: {told}, noise is {noise:.2g}"
                ])  # fmt: skip

    def _at_hand(self) -> Path | None:
        return references.at_hand(self.facts.model_path, self.identity)

    def _is_settled(self, known: Iterable[Calibration], method: Method) -> bool:
        """Whether this very engine was calibrated already, no worse than by ``method``."""
        enough = {"reference", method}
        return any(found.engine == self.engine and found.method in enough for found in known)

    def _prove(
        self, states: Rows, prompt: NDArray[np.int32], model: Path | None, *, asked: bool
    ) -> Calibration:
        doubts = ["no reference was at hand"]
        if model is not None:
            try:
                return self._by_reference(states, prompt, model)
            except SourceUnavailable as error:
                if asked:
                    raise
                doubts = [f"the model at hand could not be the reference: {error.message}"]
        return self._by_structure(states, prompt, doubts)

    def _by_reference(self, states: Rows, prompt: NDArray[np.int32], model: Path) -> Calibration:
        reference = references.compute_reference(model, self.identity, prompt)
        self._refuse(references.contradictions(self.layers, states, reference))
        found = tuple(
            agreement(states[:, column], reference.rows(layer))
            for column, layer in enumerate(self.layers)
        )
        return self._record("reference", states, prompt, agreement=found)

    def _by_structure(
        self, states: Rows, prompt: NDArray[np.int32], doubts: Sequence[str]
    ) -> Calibration:
        folder = self._local_model()
        self._refuse(structure.contradictions(self.layers, states, prompt))
        wrong, doubt = structure.judge_norm(self.layers, states, folder, self.dtype)
        self._refuse(wrong)
        weights = "" if self._knows_weights(folder) else structure.WEIGHTS_DOUBT
        left = [*doubts, weights, self._unseen(), structure.order_doubt(self.layers, states), doubt]
        return self._record("structure", states, prompt, doubt="; ".join(filter(None, left)))

    def _unseen(self) -> str:
        """Structure cannot tell a layer from its neighbour, nor a state from a part of it."""
        model_type = self.identity.model.model_type
        if was_seen(model_type) or not any(isinstance(layer, int) for layer in self.layers):
            return ""
        return f"SGLang's layers of {model_type} were read in its source only, never compared"

    def _local_model(self) -> Path | None:
        """The server's model folder, where it is on this machine and its config is the store's."""
        own = self.identity.model
        found = references.local_model(self.facts.model_path)
        if found is None or found.config_digest != own.config_digest:
            return None
        if None not in (digests := {found.weights_digest, own.weights_digest}) and len(digests) > 1:
            self._refuse(["its model folder, which is on this machine too, holds other weights"])
        return Path(self.facts.model_path)

    def _knows_weights(self, folder: Path | None) -> bool:
        """Whether its folder's weights are the store's, or its states like a reference's."""
        own = self.identity.model.weights_digest
        is_own = own is not None and folder is not None
        found = references.local_model(str(folder)) if is_own else None
        is_same = found is not None and found.weights_digest == own
        return is_same or any(x.method == "reference" for x in calibrations(self.store))

    def _refuse(self, reasons: Iterable[str]) -> None:
        found = list(reasons)
        if found:
            raise IdentityMismatch(
                f"calibration: {'; '.join(found)}",
                place=f"{self.engine.name} {self.engine.release}",
                remedy=f"launch it as told by: {commands.hsstore('server-flags', self.store.root)}",
            )

    # -- recording -----------------------------------------------------------------------------

    def _record(
        self,
        method: Method,
        states: Rows,
        prompt: NDArray[np.int32],
        *,
        agreement: tuple[Agreement, ...] = (),
        doubt: str = "",
    ) -> Calibration:
        return Calibration(
            store=self.identity.uuid,
            number=next_number(self.store),
            when=timestamp(),
            method=method,
            engine=self.engine,
            layers=self.layers,
            norm=norm_of(self.layers),
            agreement=agreement,
            doubt=doubt,
            input_ids=tuple(prompt.tolist()),
            sketch=as_recorded(sketch(states)),
        )

    def _publish(self, found: Calibration) -> None:
        """Add it to the store, unless another extractor added the like meanwhile."""
        while True:
            try:
                publish_calibration(self.store, found)
            except FileExistsError:
                known = calibrations(self.store)
                self._compare(known)
                if self._is_settled(known, found.method):
                    return
                found = dataclasses.replace(found, number=next_number(self.store))
            else:
                self.note(_told(found))
                return


def _told(found: Calibration) -> str:
    if found.method == "structure":
        return f"{found.name}: by structure alone; {found.doubt}"
    worst = max(layer.relative_error for layer in found.agreement)
    cosine = min(layer.cosine for layer in found.agreement)
    return (
        f"{found.name}: layers and norm are those of transformers, "
        f"relative error up to {worst:.2g}, cosine from {cosine:.4f}"
    )
