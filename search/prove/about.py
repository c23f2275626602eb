"""Which specs and platforms a claim speaks of, with their content hashes, so that a reader can tell whether they are his."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from search.prove.answer import About, Kind, Proof

if TYPE_CHECKING:
    from search.sides import Side
    from specs.loader import Spec
    from specs.platforms import Platform


def about_spec(spec: Spec, platforms: Iterable[Platform], changes: Mapping[str, Any]) -> About:
    """A spec on all of some platforms, with values of its options."""
    texts = {name: str(value) for name, value in changes.items()}
    return About(spec.name, spec.content_hash, texts, _hashes(platforms))


def about_sides(sides: Sequence[Side]) -> tuple[About, ...]:
    """Each side: its spec with what is changed in it, on its platform."""
    return tuple(about_spec(s.spec, [s.platform], {**s.changed, **s.options, **s.context}) for s in sides)


def about_platforms(platforms: Sequence[Platform]) -> tuple[About, ...]:
    """Tensor cores, of no spec."""
    return tuple(About("", "", {}, _hashes([p])) for p in platforms)


def asked(kind: Kind, about: tuple[About, ...], proofs: Iterable[Proof]) -> list[Proof]:
    """Proofs that say what was asked, and of what."""
    return [replace(proof, kind=kind, about=about) for proof in proofs]


def _hashes(platforms: Iterable[Platform]) -> dict[str, str]:
    return {p.name: p.content_hash for p in platforms}
