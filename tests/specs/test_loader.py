"""Loading: what is accepted, resolved and written back, and what every kind of bad file is told."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs import Spec, SpecError, load_spec, parse_spec
from specs.discover import every
from specs.errors import Place
from specs.nodes import Name

HEAD = """\
schema  = 1
name    = "my.spec"
status  = "read"
summary = "a test"
"""
NUMBERS = """
[numbers]
compute = "f32"
inputs  = { q = "bf16", k = "bf16", v = "bf16" }
"""
BODY = """
[let]
n = "ceildiv(kv_len, 64)"

[levels]
tile = "pieces(n, unit=64)"

[state.row]
m = "-inf"

[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"

[tile]
top = "max(score)"
m   = "max(prev(m), top)"

[row]
output = "bf16(last(m))"
lse    = "last(m)"
"""
GOOD = HEAD + NUMBERS + BODY
LIBRARY = [found.name for found in every()]


def wrong(text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "my.toml")
    return caught.value


def place(error: SpecError) -> str:
    return str(error.place)


# -- what is right -------------------------------------------------------------------------------------------


def test_a_good_spec() -> None:
    spec = parse_spec(GOOD, "my.toml")
    assert spec.name == "my.spec"
    assert spec.levels == {"tile": "pieces(n, unit=64)"}
    assert list(spec.sections) == ["token", "tile", "row"]
    assert list(spec.sections["tile"]) == ["top", "m"]
    assert spec.file.state == {"row": {"m": "-inf"}}
    assert spec.numbers.compute_format.p == 24
    assert spec.numbers.input_format("scores").name == "f32"
    assert spec.numbers.input_format("values").name == "bf16"


def test_places_of_lines_and_of_characters_in_them() -> None:
    spec = parse_spec(GOOD, "my.toml")
    assert spec.place("token", "score") == Place("my.toml", 20, 10)
    assert spec.place("token", "score", 16) == Place("my.toml", 20, 26)
    assert spec.place("let", "n") == Place("my.toml", 11, 6)
    assert spec.place("levels", "tile") == Place("my.toml", 14, 9)
    assert spec.place("state.row", "m") == Place("my.toml", 17, 6)
    assert spec.place("numbers", "compute") == Place("my.toml", 7, 12)
    assert spec.place("row", "nothing") == Place("my.toml")


def test_places_follow_escapes_and_long_strings() -> None:
    text = GOOD.replace('"max(score)"', '"""\\\n   max(score)"""').replace('"last(m)"', '"\\u006cast(m)"')
    spec = parse_spec(text, "my.toml")
    assert spec.place("tile", "top", 4) == Place("my.toml", 24, 8)
    assert spec.place("row", "lse", 1) == Place("my.toml", 29, 17)
    bad = text.replace("max(score)", "max(scorr)")
    assert place(wrong(bad)) == "my.toml:24:8"


def test_parsed_lines() -> None:
    spec = parse_spec(GOOD, "my.toml")
    top = spec.node("tile", "top")
    assert [n.id for n in top.walk() if isinstance(n, Name)] == ["score"]
    assert spec.node("tile", "top") is top
    assert spec.level("tile").kind == "pieces"
    with pytest.raises(KeyError):
        spec.node("tile", "nothing")


@pytest.mark.parametrize("name", LIBRARY)
def test_spec_to_toml_to_spec_is_the_identity(name: str) -> None:
    spec = load_spec(name)
    again = parse_spec(spec.to_toml())
    assert again.file == spec.file
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.to_toml() == spec.to_toml()
    assert [list(s) for s in again.sections.values()] == [list(spec.sections[s]) for s in again.sections], (
        "the order of sites"
    )


@settings(max_examples=60, deadline=None)
@given(
    summary=st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc"]), max_size=40),
    options=st.dictionaries(
        st.from_regex(r"opt_[a-z]{1,5}", fullmatch=True),
        st.booleans() | st.integers(-(1 << 40), 1 << 40) | st.floats(allow_nan=False),
        max_size=4,
    ),
    spaces=st.text(" ", max_size=3),
)
def test_round_trip_of_generated_headers(
    summary: str, options: dict[str, bool | int | float], spaces: str
) -> None:
    spec = parse_spec(GOOD)
    changed = Spec(
        spec.file.model_copy(
            update={"summary": summary, "options": options, "constants": {"c1": f"{spaces}1 +{spaces} 2"}}
        ),
        "x",
    )
    again = parse_spec(changed.to_toml())
    assert again.file == changed.file
    assert {k: (type(v), v) for k, v in again.file.options.items()} == {
        k: (type(v), v) for k, v in options.items()
    }


def test_the_hash_is_of_the_content_not_of_the_layout() -> None:
    spec = parse_spec(GOOD)
    assert parse_spec("# a comment\n" + GOOD.replace("lse    =", "lse =")).content_hash == spec.content_hash
    assert parse_spec(GOOD.replace("unit=64", "unit=32")).content_hash != spec.content_hash


# -- extends and variants ------------------------------------------------------------------------------------


def test_extends_replaces_adds_and_drops(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(
        GOOD + '[[variant]]\nwhen = "causal == 1"\n[variant.row]\nlse = "last(m) + 1"\n'
    )
    child = (
        'schema = 1\nname = "child"\nstatus = "walkthrough"\nsummary = "c"\n'
        'extends = "./base.toml"\ndrop = ["lse"]\n'
        '[tile]\ntop = "max(score) + 0"\nextra = "top + 1"\n'
        '[[variant]]\nwhen = "causal == 0"\n[variant.let]\nn = "2"\n'
    )
    path = tmp_path / "child.toml"
    path.write_text(child)
    spec = load_spec(path)
    assert spec.name == "child"
    assert spec.file.extends is None
    assert spec.file.status == "walkthrough"
    assert spec.sections["tile"] == {"top": "max(score) + 0", "m": "max(prev(m), top)", "extra": "top + 1"}
    assert list(spec.sections["tile"]) == ["top", "m", "extra"]
    assert "lse" not in spec.sections["row"]
    assert [v.when for v in spec.file.variants] == ["causal == 1", "causal == 0"]
    assert spec.place("tile", "top") == Place(str(path), 8, 8)
    assert spec.place("tile", "m") == Place(str(tmp_path / "base.toml"), 24, 8)
    assert spec.place("variant.1.let", "n") == Place(str(path), 13, 6)
    assert spec.place("variant.0", "when").file == str(tmp_path / "base.toml")
    assert parse_spec(spec.to_toml()) == spec


def test_extends_a_name_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('schema = 1\nname = "mine"\nstatus = "read"\nsummary = ""\nextends = "walkthrough.xqa"\n')
    spec = load_spec(path)
    assert spec.sections == load_spec("walkthrough.xqa").sections
    path.write_text(path.read_text().replace("xqa", "xqb"))
    with pytest.raises(
        SpecError, match=r"mine\.toml:5:12: extends: unknown spec 'walkthrough\.xqb'\n.*walkthrough\.xqa"
    ):
        load_spec(path)


def test_extends_in_a_circle_is_found(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / f"{name}.toml").write_text(f'{HEAD}extends = "./{other}.toml"\n')
    with pytest.raises(SpecError, match="extends itself"):
        load_spec(tmp_path / "a.toml")


def test_a_variant_lays_its_lines_over() -> None:
    text = GOOD + (
        '[[variant]]\nwhen = "causal == 1"\ndrop = ["lse"]\n[variant.let]\nn = "3"\n'
        '[variant.row]\noutput = "last(m)"\nmore = "output + 1"\n'
    )
    spec = parse_spec(text, "my.toml")
    assert spec.text("variant.0", "when") == "causal == 1"
    changed = spec.with_variant(0)
    assert changed.sections["row"] == {"output": "last(m)", "more": "output + 1"}
    assert changed.file.let == {"n": "3"}
    assert changed.place("let", "n") == spec.place("variant.0.let", "n")
    assert str(changed.node("let", "n")) == str(spec.node("variant.0.let", "n"))
    assert spec.sections["row"]["lse"] == "last(m)", "the spec itself is unchanged"


def test_drop_may_stand_in_a_section_of_a_variant() -> None:
    text = GOOD + '[[variant]]\nwhen = "causal == 1"\n[variant.row]\noutput = "1"\ndrop = ["lse"]\n'
    assert parse_spec(text).file.variants[0].drop == ("lse",)


def test_a_variant_cannot_put_a_site_in_a_second_section() -> None:
    spec = parse_spec(GOOD + '[[variant]]\nwhen = "causal == 1"\n[variant.row]\ntop = "last(m)"\n', "my.toml")
    with pytest.raises(SpecError, match=r"my\.toml:32:1: 'top' is in \[tile\] and in \[row\]"):
        spec.with_variant(0)


# -- what is wrong -------------------------------------------------------------------------------------------

DEEP = "(" * 10_000 + "1" + ")" * 10_000
CASES = {
    "unknown key": (
        GOOD.replace("status", "stattus", 1),
        "my.toml:3:1",
        "unknown key 'stattus'",
        "did you mean 'status'?",
    ),
    "missing key": (GOOD.replace('status  = "read"', ""), "my.toml", "'status' is missing", "add a line"),
    "status": (GOOD.replace('"read"', '"proven"'), "my.toml:3:12", "'status'", "got 'proven'"),
    "schema 2": (GOOD.replace("schema  = 1", "schema  = 2"), "my.toml:1:1", "'schema'", "got 2"),
    "schema as text": (GOOD.replace("schema  = 1", 'schema  = "1"'), "my.toml:1:12", "'schema'", "got '1'"),
    "name": (GOOD.replace("my.spec", "My Spec"), "my.toml:2:12", "'name'", "got 'My Spec'"),
    "summary not text": (GOOD.replace('"a test"', "7"), "my.toml:4:1", "'summary'", "got 7"),
    "format": (
        GOOD.replace('q = "bf16"', 'q = "bf17"'),
        "my.toml:8:18",
        "unknown number format 'bf17'",
        "did you mean 'bf16'?",
    ),
    "unknown input": (
        GOOD.replace("k = ", "kk = "),
        "my.toml:8:25",
        "unknown key 'numbers.inputs.kk'",
        "did you mean 'k'?",
    ),
    "no numbers": (HEAD + BODY, "my.toml", "[numbers] is missing", "add [numbers]"),
    "numbers not a table": (HEAD + "numbers = 1\n" + BODY, "my.toml:5:1", "'numbers'", "got 1"),
    "no output": (
        GOOD.replace("output", "outputs"),
        "my.toml",
        "[row] has no site 'output'",
        "output of [row]",
    ),
    "unknown section": (
        GOOD.replace("[tile]", "[tiles]"),
        "my.toml:22:2",
        "unknown section [tiles]",
        "did you mean 'tile'?",
    ),
    "table name": (
        GOOD.replace("[levels]", "[level]"),
        "my.toml:13:2",
        "unknown section [level]",
        "did you mean 'levels'?",
    ),
    "section as value": (HEAD + "token = 1\n" + NUMBERS, "my.toml:5:1", "unknown key 'token'", "known names"),
    "the field's own name": (HEAD + "sections = 1\n" + NUMBERS, "my.toml:5:1", "'sections'", "got 1"),
    "a section called sections": (
        GOOD + '[sections]\nx = "1"\n',
        "my.toml:29:2",
        "unknown section [sections]",
        "",
    ),
    "site not text": (GOOD.replace('"max(score)"', "3"), "my.toml:23:1", "'tile.top'", "got 3"),
    "site empty": (GOOD.replace('"max(score)"', '""'), "my.toml:23:8", "'tile.top'", "got ''"),
    "site name": (GOOD.replace("top =", '"a b" ='), "my.toml:23:1", "'tile.a b'", "got 'a b'"),
    "keyword": (
        GOOD.replace("top =", "lambda ="),
        "my.toml:23:1",
        "'lambda' is a word of the language",
        "another name",
    ),
    "reserved": (
        GOOD.replace("top =", "visible ="),
        "my.toml:23:1",
        "'visible' already means something",
        "another name",
    ),
    "given": (
        GOOD.replace("top =", "kv_len ="),
        "my.toml:23:1",
        "'kv_len' is given to every spec",
        "another name",
    ),
    "twice": (
        GOOD.replace("lse ", "top "),
        "my.toml:28:1",
        "'top' is in [tile] and in [row]",
        "a name means one thing",
    ),
    "let and site": (
        GOOD.replace("n = ", "top = "),
        "my.toml:23:1",
        "'top' is in [let] and in [tile]",
        "rename",
    ),
    "scope": (
        GOOD.replace("[state.row]", "[state.rows]"),
        "my.toml:16:8",
        "unknown scope in [state.rows]",
        "did you mean 'row'?",
    ),
    "state without site": (
        GOOD.replace('m = "-inf"', 'm = "-inf"\nz = "0"'),
        "my.toml:18:1",
        "state 'z' is never updated",
        "add a site",
    ),
    "unknown name": (
        GOOD.replace("max(score)", "max(scorre)"),
        "my.toml:23:12",
        "unknown name 'scorre'",
        "did you mean 'score'?",
    ),
    "unknown state": (GOOD.replace("prev(m)", "prev(mm)"), "my.toml:24:12", "unknown state 'mm'", ""),
    "unknown integer": (
        GOOD.replace("kv_len", "kv_lenn"),
        "my.toml:11:14",
        "unknown name 'kv_lenn'",
        "did you mean 'kv_len'?",
    ),
    "site in an integer": (
        GOOD.replace("ceildiv(kv_len,", "ceildiv(score,"),
        "my.toml:11:14",
        "unknown name 'score'",
        "",
    ),
    "unknown function": (
        GOOD.replace("max(score)", "selct(score)"),
        "my.toml:23:8",
        "unknown function 'selct'",
        "did you mean 'select'?",
    ),
    "syntax": (GOOD.replace("max(score)", "max(score"), "my.toml:23:11", "not an expression", ""),
    "level rule": (
        GOOD.replace("pieces(n, unit=64)", "peices(n, unit=64)"),
        "my.toml:14:9",
        "unknown level rule 'peices'",
        "did you mean 'pieces'?",
    ),
    "power": (GOOD.replace("max(score)", "score ** 2"), "my.toml:23:8", "Pow", ""),
    "import": (GOOD.replace("max(score)", "__import__('os').system('touch pwned')"), "my.toml:23:8", "", ""),
    "attribute": (
        GOOD.replace("max(score)", "score.__class__"),
        "my.toml:23:8",
        "attributes are not part of the language",
        "",
    ),
    "lambda": (
        GOOD.replace("max(score)", "(lambda: 1)()"),
        "my.toml:23:8",
        "only named functions can be called",
        "",
    ),
    "comprehension": (
        GOOD.replace("max(score)", "[x for x in q]"),
        "my.toml:23:8",
        "ListComp is not part",
        "",
    ),
    "f-string": (GOOD.replace("max(score)", "f'{score}'"), "my.toml:23:8", "JoinedStr is not part", ""),
    "walrus": (GOOD.replace("max(score)", "(x := 1)"), "my.toml:23:9", "NamedExpr is not part", ""),
    "subscript": (GOOD.replace("max(score)", "score[0]"), "my.toml:23:8", "Subscript is not part", ""),
    "nested brackets": (GOOD.replace("max(score)", DEEP), "my.toml:23:8", "'tile.top'", "got"),
    "nested brackets, short": (
        GOOD.replace("max(score)", DEEP[9_100:10_900]),
        "my.toml:23:8",
        "brackets nested",
        "sites of their own",
    ),
    "long": (
        GOOD.replace("max(score)", "1 + " * 600 + "1"),
        "my.toml:23:8",
        "at most 2000 characters",
        "got",
    ),
    "huge integer in a formula": (GOOD.replace("max(score)", "9" * 1_900), "my.toml:23:8", "", ""),
    "huge option": (
        GOOD + "[options]\nbig = 99999999999999999999\n",
        "my.toml:30:1",
        "bounded by 2**40",
        "smaller",
    ),
    "integer of 5,000 digits": (
        GOOD + "[options]\nbig = " + "9" * 5_000 + "\n",
        "my.toml",
        "a value cannot be read",
        "",
    ),
    "nan option": (GOOD + "[options]\nx = nan\n", "my.toml:30:1", "cannot be NaN", ""),
    "text option": (
        GOOD + '[options]\nx = "1"\n',
        "my.toml:30:6",
        "an option is true, false",
        "formulas belong in",
    ),
    "date option": (GOOD + "[options]\nx = 1979-05-27\n", "my.toml:30:1", "an option is true, false", ""),
    "TOML": (GOOD + "[options\n", "my.toml:29:9", "not TOML", ""),
    "TOML twice": (GOOD + "[row]\n", "my.toml:29:5", "not TOML", ""),
    "nested arrays": (
        HEAD + "source = " + "[" * 10_000 + "]" * 10_000 + "\n",
        "my.toml",
        "too deeply nested",
        "",
    ),
    "source": (
        HEAD + '[[source]]\nrepository = "a/b"\ncommit = "xyz"\npath = "p"\n',
        "my.toml:7:11",
        "'source.0.commit'",
        "got 'xyz'",
    ),
    "variant without when": (
        GOOD + '[[variant]]\n[variant.row]\nlse = "1"\n',
        "my.toml:29:3",
        "'variant.0.when' is missing",
        "",
    ),
    "variant section": (
        GOOD + '[[variant]]\nwhen = "1"\n[variant.raw]\nlse = "1"\n',
        "my.toml:31:10",
        "unknown section [raw]",
        "did you mean 'row'?",
    ),
    "variant key": (
        GOOD + '[[variant]]\nwhen = "1"\nwhne = 1\n',
        "my.toml:31:1",
        "unknown key 'variant.0.whne'",
        "did you mean 'when'?",
    ),
    "variant syntax": (
        GOOD + '[[variant]]\nwhen = "kv_len =< 3"\n',
        "my.toml:30:16",
        "not an expression",
        "",
    ),
    "variant drop": (
        GOOD + '[[variant]]\nwhen = "1"\ndrop = ["lze"]\n',
        "my.toml:31:1",
        "drop: there is no 'lze'",
        "did you mean 'lse'?",
    ),
    "extends of a text": (HEAD + 'extends = "no/such.toml"\n', "my.toml:5:12", "extends: no such file", ""),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_spec_is_told_where_what_and_what_to_do(case: str) -> None:
    text, where, cause, remedy = CASES[case]
    error = wrong(text)
    assert place(error) == where
    assert cause in error.cause
    assert remedy in error.remedy
    assert error.remedy or case == "TOML"


def test_nothing_in_a_formula_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong(CASES["import"][0])
    assert list(tmp_path.iterdir()) == []


def test_several_errors_come_in_one_message() -> None:
    text = GOOD.replace("max(score)", "max(scorre)").replace("bf16(last(m))", "bf16(lost(m))")
    shown = str(wrong(text))
    assert "my.toml:23:12: unknown name 'scorre'" in shown
    assert "my.toml:27:16: unknown function 'lost'" in shown


def test_many_errors_are_cut_off() -> None:
    sites = "".join(f's{n} = "nothing{n}"\n' for n in range(100))
    shown = str(wrong(GOOD.replace("[tile]\n", "[tile]\n" + sites)))
    assert "and 92 more" in shown


def test_too_many_sites() -> None:
    sites = "".join(f's{n} = "1"\n' for n in range(500))
    assert "the limit is 500" in str(wrong(GOOD.replace("[tile]\n", "[tile]\n" + sites)))


# -- files ---------------------------------------------------------------------------------------------------


def refused(path: object) -> str:
    with pytest.raises(SpecError) as caught:
        load_spec(str(path))
    assert caught.value.remedy
    return str(caught.value)


def test_missing_and_odd_paths(tmp_path: Path) -> None:
    assert f"{tmp_path}/no.toml: no such file" in refused(tmp_path / "no.toml")
    assert "not a regular file" in refused(f"{tmp_path}/")
    loop = tmp_path / "loop.toml"
    loop.symlink_to(loop)
    assert str(loop) in refused(loop)
    broken = tmp_path / "broken.toml"
    broken.symlink_to(tmp_path / "nowhere")
    assert "no such file" in refused(broken)
    assert "not the name of a spec" in refused("")
    assert "not the name of a spec" in refused("a\0b")
    assert refused("x" * 5_000 + ".toml")
    assert "not a regular file" in refused("/dev/null")


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text(GOOD)
    (tmp_path / "link.toml").symlink_to(tmp_path / "real.toml")
    assert load_spec(tmp_path / "link.toml").name == "my.spec"


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b'schema = 1\nname = "\xff"\n')
    assert f"{path}:2:9: not UTF-8: byte 0xff" in refused(path)


def test_a_byte_order_mark_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    spec = load_spec(path)
    assert spec == parse_spec(GOOD)
    assert spec.place("tile", "top") == Place(str(path), 23, 8)


def test_large_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(GOOD + "#" * (256 * 1024))
    assert "larger than 256 KiB" in refused(path)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_damaged_spec_loads_or_is_refused(data: st.DataObject) -> None:
    """Cut, doubled and replaced characters never give anything but a `SpecError` with a place."""
    text = GOOD + '[[variant]]\nwhen = "causal == 1"\n[variant.row]\nlse = "1"\n'
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(st.text("[]{}()=\",'.#\n\\ax1é\0-", max_size=4)) + text[at + length :]
    with suppress(SpecError):
        parse_spec(text, "my.toml")
        return
    assert place(wrong(text)).startswith("my.toml")
