"""LoRA adapters on one base model: trainable ones, published versions, and batches that mix them.

PEFT owns the trainable parameters and the forward pass in training. A published version is a table of immutable
tensors, outside of PEFT, so that any number of them can exist. For a pass without gradients a *route* says which
version each row of the batch uses, and the PEFT layers then compute

    base(x) + ((x Aᵀ) * mask) Bᵀ        A, B: the versions' matrices side by side

where mask [rows, 1, ranks] holds the version's scaling at a row's own ranks and 0 elsewhere: three products
whatever the number of versions, and no rows to sort or gather. Publishing copies nothing: the version shares
the parameters' storage until the next optimizer step moves the parameters to fresh storage.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn import functional

from unfrozen.core.errors import UsageError
from unfrozen.core.traces import AdapterRef
from unfrozen.engines.protocol import LoraSpec

Weights = Mapping[str, tuple[Tensor, Tensor]]
"""Module name → (A [rank, in], B [out, rank])."""

_PACKS = 4
"""Combined matrices kept for reuse; the sets of versions in use change far less often than batches do."""


@dataclass(frozen=True, slots=True)
class Version:
    """Weights of a published version. Nothing writes to them."""

    lora: LoraSpec
    weights: Weights


@dataclass(slots=True)
class Adapter:
    """A trainable adapter: PEFT's parameters, and the optimizer once it has made a step."""

    key: str
    """PEFT's name for it (an adapter's own name may hold dots, PEFT's may not)."""
    lora: LoraSpec
    parameters: dict[str, tuple[nn.Parameter, nn.Parameter]]
    optimizer: torch.optim.AdamW | None = None
    shared: bool = False
    """Whether a published version uses the parameters' storage."""

    def flat(self) -> list[nn.Parameter]:
        """All parameters in a fixed order."""
        return [p for pair in self.parameters.values() for p in pair]

    def detach(self) -> None:
        """Move the parameters to storage of their own, if a version shares it."""
        if self.shared:
            for parameter in self.flat():
                parameter.data = parameter.data.clone()
            self.shared = False

    def overwrite(self, weights: Weights) -> None:
        """Put other weights in, in fresh storage."""
        for name, pair in self.parameters.items():
            for parameter, value in zip(pair, weights[name], strict=True):
                parameter.data = value.to(parameter.data.device, parameter.data.dtype, copy=True)
        self.shared = False


@dataclass(frozen=True, slots=True)
class _Pack:
    """Several versions side by side: for each module A [ranks, in] and Bᵀ [ranks, out], and who owns each rank."""

    refs: tuple[AdapterRef, ...]
    scales: tuple[float, ...]
    matrices: Mapping[str, tuple[Tensor, Tensor]]
    owners: Mapping[str, tuple[int, ...]]
    """For each module, the index in `refs` of the version that owns each rank."""


class Route:
    """Which version each row of the next passes uses."""

    def __init__(self, pack: _Pack, rows: Tensor | None) -> None:
        """`rows`: index into the pack's versions for each row, -1 for the base; None: all use the only version."""
        self.pack = pack
        self._rows = rows
        self._masks: dict[tuple[int, ...], Tensor] = {}

    def part(self, first: int, last: int) -> Route:
        """The route of rows first..last."""
        return Route(self.pack, None if self._rows is None else self._rows[first:last])

    def mask(self, owners: tuple[int, ...]) -> Tensor | None:
        """Return [rows, 1, ranks]: the version's scaling where the rank belongs to the row's version, else 0."""
        if self._rows is None:
            return None
        mask = self._masks.get(owners)
        if mask is None:
            owner = torch.tensor(owners, device=self._rows.device)
            scale = torch.tensor([self.pack.scales[i] for i in owners], device=self._rows.device)
            mask = self._masks[owners] = ((self._rows[:, None] == owner) * scale).unsqueeze(1)
        return mask


class AdapterBank:
    """All adapters of one base model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._peft: Any = None
        self._trainable: dict[str, Adapter] = {}
        self._versions: dict[AdapterRef, Version] = {}
        self._next: dict[str, int] = {}
        self._packs: dict[tuple[AdapterRef, ...], _Pack] = {}
        self._wired: dict[str, Any] = {}
        """Modules whose forward pass follows the route, by name."""
        self.route: Route | None = None

    # -- trainable adapters ---------------------------------------------------------------------------------

    def create(self, name: str, lora: LoraSpec, seed: int, init: Version | None = None) -> None:
        """Add a trainable adapter: fresh (B = 0, a no-op) from `seed`, or with the weights of `init`.

        With `init` the shape is that of `init`.
        """
        if name in self._trainable:
            raise UsageError(f"adapter {name!r} exists already; choose another name")
        if init is not None:
            lora = init.lora
        key = f"adapter{len(self._trainable)}"
        config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            target_modules=self._targets(lora),
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
        )
        self._unwire()
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers for a name it has retired
            torch.manual_seed(seed)
            if self._peft is None:
                self._peft = PeftModel(self._model, config, adapter_name=key)
            else:
                self._peft.add_adapter(key, config)
        self._peft.eval()
        self._wire()
        parameters = {}
        for module_name, module in self._lora_layers():
            if key in module.lora_A:
                a, b = module.lora_A[key].weight, module.lora_B[key].weight
                parameters[module_name] = (a, b)
        adapter = Adapter(key, lora, parameters)
        if init is not None:
            self.check(init, f"the weights given for adapter {name!r}")
            adapter.overwrite(init.weights)
        self._trainable[name] = adapter
        self._next.setdefault(name, 0)

    def trainable(self, name: str) -> Adapter:
        """Return the trainable adapter `name`; UsageError if there is none."""
        if name not in self._trainable:
            raise UsageError(f"adapter {name!r} is not trainable here; there are: {sorted(self._trainable)}")
        return self._trainable[name]

    def activate(self, name: str) -> Adapter:
        """Direct forward passes with gradients through the trainable adapter `name`."""
        adapter = self.trainable(name)
        if self._peft.active_adapter != adapter.key or not adapter.flat()[0].requires_grad:
            self._peft.set_adapter(adapter.key)
        return adapter

    # -- published versions ---------------------------------------------------------------------------------

    def publish(self, name: str) -> AdapterRef:
        """Freeze the present weights as the next version."""
        adapter = self.trainable(name)
        weights = {m: (a.detach(), b.detach()) for m, (a, b) in adapter.parameters.items()}
        ref = AdapterRef(name, self._next[name])
        self._next[name] += 1
        self._versions[ref] = Version(adapter.lora, weights)
        adapter.shared = True
        return ref

    def register(self, ref: AdapterRef, version: Version) -> None:
        """Make `version` known as `ref`. Doing so twice with the same weights is fine, with others an error."""
        self.check(version, str(ref))
        known = self._versions.get(ref)
        if known is not None:
            if not _equal(known, version):
                raise UsageError(f"{ref} is already published with other weights; a version is never reused")
            return
        self._versions[ref] = version
        self._wire()
        self._next[ref.name] = max(self._next.get(ref.name, 0), ref.version + 1)

    def version(self, ref: AdapterRef) -> Version:
        """Return a published version; UsageError if it was never published or was dropped."""
        if ref not in self._versions:
            raise UsageError(f"adapter version {ref} is not loaded; publish it or load it first")
        return self._versions[ref]

    def drop(self, ref: AdapterRef) -> None:
        """Forget a published version."""
        self.version(ref)
        del self._versions[ref]
        self._packs = {refs: pack for refs, pack in self._packs.items() if ref not in refs}

    def counter(self, name: str) -> int:
        """The number that the next published version of `name` gets."""
        return self._next.get(name, 0)

    def advance(self, name: str, counter: int) -> None:
        """Continue counting at `counter`, never below what is used already."""
        self._next[name] = max(self._next.get(name, 0), counter)

    def forget_packs(self) -> None:
        """Free combined matrices, so that what comes next does not depend on which were there."""
        self._packs.clear()

    # -- routing --------------------------------------------------------------------------------------------

    def plan(self, rows: Sequence[AdapterRef | None], device: torch.device) -> Route | None:
        """Return the route of a batch whose row i uses version rows[i] (None: the base)."""
        needed = tuple(sorted({ref for ref in rows if ref is not None}))
        if not needed:
            return None if self._peft is None else Route(_Pack((), (), {}, {}), None)
        pack = self._pack(needed)
        if len(pack.refs) == 1 and None not in rows:
            return Route(pack, None)
        index = {ref: i for i, ref in enumerate(pack.refs)}
        return Route(pack, torch.tensor([-1 if r is None else index[r] for r in rows], device=device))

    @contextmanager
    def routed(self, route: Route | None) -> Iterator[None]:
        """Run passes without gradients under `route`."""
        self.route = route
        try:
            yield
        finally:
            self.route = None

    def _pack(self, needed: tuple[AdapterRef, ...]) -> _Pack:
        """Combine versions, or reuse a combination that holds them and little else."""
        for refs, pack in self._packs.items():
            room = 1 if len(needed) == 1 else 2 * len(needed)
            if len(refs) <= room and set(needed) <= set(refs):
                self._packs[refs] = self._packs.pop(refs)
                return pack
        while len(self._packs) >= _PACKS:
            del self._packs[next(iter(self._packs))]
        versions = [self.version(ref) for ref in needed]
        matrices: dict[str, tuple[Tensor, Tensor]] = {}
        owners: dict[str, tuple[int, ...]] = {}
        for module in dict.fromkeys(m for v in versions for m in v.weights):
            users = [i for i, v in enumerate(versions) if module in v.weights]
            pairs = [versions[i].weights[module] for i in users]
            if len(versions) == 1:
                matrices[module] = (pairs[0][0], pairs[0][1].t())
            else:
                matrices[module] = (torch.cat([a for a, _ in pairs]), torch.cat([b.t() for _, b in pairs]))
            owners[module] = tuple(i for i in users for _ in range(versions[i].lora.rank))
        scales = tuple(v.lora.alpha / v.lora.rank for v in versions)
        pack = self._packs[needed] = _Pack(needed, scales, matrices, owners)
        return pack

    def _wire(self) -> None:
        """Let every layer that an adapter may change follow the route: PEFT's, and those of frozen versions."""
        used = {name for version in self._versions.values() for name in version.weights}
        layers = dict(self._lora_layers())
        layers.update((name, m) for name, m in self._linears() if name in used and name not in layers)
        for name, module in layers.items():
            if name not in self._wired:
                module.forward = self._routed_forward(name, module)
                self._wired[name] = module

    def _unwire(self) -> None:
        """Give all layers their own forward pass back, so that PEFT may wrap them."""
        for module in self._wired.values():
            del module.forward
        self._wired.clear()

    def _routed_forward(self, name: str, module: Any) -> Callable[..., Tensor]:
        plain = module.forward
        base = module.base_layer if isinstance(module, LoraLinear) else plain

        def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            route = self.route
            if route is None:
                return plain(x, *args, **kwargs)
            out: Tensor = base(x)
            pair = route.pack.matrices.get(name)
            if pair is None:
                return out
            inner = functional.linear(x.to(pair[0].dtype), pair[0])
            mask = route.mask(route.pack.owners[name])
            scale = 1.0
            if mask is None:
                scale = route.pack.scales[0]
            else:
                inner *= mask
            if out.dtype != inner.dtype:
                return out.add_(torch.matmul(inner, pair[1]), alpha=scale)
            out.view(-1, out.shape[-1]).addmm_(inner.view(-1, inner.shape[-1]), pair[1], alpha=scale)
            return out

        return forward

    # -- shapes ---------------------------------------------------------------------------------------------

    def check(self, version: Version, what: str) -> None:
        """Raise UsageError unless the version's modules and shapes are those of this base model."""
        linear = dict(self._linears())
        if not version.weights:
            raise UsageError(f"{what}: no LoRA weights in it")
        for name, (a, b) in version.weights.items():
            module = linear.get(name)
            if module is None:
                raise UsageError(f"{what}: made for another model (this one has no linear layer {name!r})")
            if a.shape != (version.lora.rank, module.in_features) or b.shape != (
                module.out_features,
                version.lora.rank,
            ):
                raise UsageError(f"{what}: made for another model (shapes differ at {name!r})")

    def _targets(self, lora: LoraSpec) -> list[str]:
        """Resolve the targets: all linear layers but the output head, or the given suffixes."""
        names = [name for name, _ in self._linears()]
        if not names:
            raise UsageError(
                f"{type(self._model).__name__} has no linear layers, so it cannot carry LoRA adapters here"
            )
        if lora.targets == "all-linear":
            return sorted({name.rpartition(".")[2] for name in names})
        missing = [t for t in lora.targets if not any(n == t or n.endswith("." + t) for n in names)]
        if missing or not lora.targets:
            allowed = sorted({name.rpartition(".")[2] for name in names})
            raise UsageError(f"lora targets {missing} name no linear layer of this model; allowed: {allowed}")
        return list(lora.targets)

    def _lora_layers(self) -> Iterator[tuple[str, Any]]:
        for name, module in self._model.named_modules():
            if isinstance(module, LoraLinear):
                yield name, module

    def _linears(self) -> Iterator[tuple[str, Any]]:
        """Linear layers by name, without the output head; those that carry adapters under their own name."""
        head = self._model.get_output_embeddings()
        for name, module in self._model.named_modules():
            if isinstance(module, LoraLinear):
                yield name, module.get_base_layer()
            elif isinstance(module, nn.Linear) and module is not head:
                inside = ".lora_" in name or name.endswith(".base_layer")
                if not inside:
                    yield name, module


def _equal(a: Version, b: Version) -> bool:
    if a.lora.rank != b.lora.rank or a.lora.alpha != b.lora.alpha or a.weights.keys() != b.weights.keys():
        return False
    return all(torch.equal(x, y) for m in a.weights for x, y in zip(a.weights[m], b.weights[m], strict=True))
