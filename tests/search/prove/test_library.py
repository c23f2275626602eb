"""The whole of it over a few specs: a table, the reasons of what is not proved, and the JSON contract."""

import json

from reports.cli import app
from search.prove.library import first_side, library_names
from specs import load_spec
from tests.commands import invoke


def test_a_table_and_json():
    out, err = invoke(
        app,
        *(
            "prove",
            "library",
            "walkthrough.xqa",
            "walkthrough.trtllm_gen",
            "--workers",
            "1",
            "--seconds",
            "60",
        ),
        *("--format", "json"),
    )
    found = json.loads(out)
    assert found["schema"] == 1
    assert [s["spec"] for s in found["specs"]] == ["walkthrough.xqa", "walkthrough.trtllm_gen"]
    proofs = found["specs"][0]["proofs"]
    assert proofs["partition"]["status"] == proofs["algebra"]["status"] == "proved"
    assert proofs["h200 = h100"]["status"] == "proved"
    assert proofs["h200 = b200"]["status"] == "not decided"
    assert "groups differs" in proofs["h200 = b200"]["reason"]
    assert proofs["error at c = 1"]["details"]["rigor"] == "rigorous"
    every = [p for s in found["specs"] for p in s["proofs"].values()] + found["others"]
    assert all(p["assumptions"] for p in every if p["status"] == "proved")
    assert "replay: ulpscope" in err


def test_every_spec_of_the_library_has_a_platform():
    names = library_names()
    assert len(names) == 18
    assert all(first_side(load_spec(n)) is not None for n in names)
