"""Proofs from a file that somebody sends."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from reports.contract_base import to_json
from reports.prove.contract import SCHEMA_ID, Proofs
from reports.prove.section import ProofFile
from reports.reading import Readable, parse, read_bytes
from specs.errors import InputError

PROOFS = Readable(
    model=Proofs,
    schema_id=SCHEMA_ID,
    name="proofs.json",
    noun="proof file",
    kind="file of proofs",
    again="make the proofs again with: ulpscope prove ... --format json",
    why="it holds no proofs",
    instead="name what `ulpscope prove ... --format json` prints, or the proofs.json of `ulpscope prove ... -o FOLDER`",
    none="name what `ulpscope prove ... --format json` prints",
)


def read_proofs(names: Sequence[str]) -> list[tuple[ProofFile, Proofs]]:
    """The proofs in files, or in the proofs.json of folders, with what tells the files apart.

    Raises:
        InputError: there is none, it is too large, no JSON, cut off, of another kind, or of another version.
    """
    found: list[tuple[ProofFile, Proofs]] = []
    for name in names:
        path, data = read_bytes(name, PROOFS)
        proofs = parse(path, data, PROOFS)
        try:
            to_json(proofs).encode()
        except UnicodeEncodeError:
            cause = "holds half a character, which no text can"
            raise InputError(cause, place=str(path), remedy=PROOFS.again) from None
        about = proofs.provenance
        found.append(
            (
                ProofFile(
                    name=path.name,
                    sha256=hashlib.sha256(data).hexdigest(),
                    command=about.command,
                    started=about.started,
                    versions=about.versions,
                    claims=len(proofs.claims),
                ),
                proofs,
            )
        )
    return found
