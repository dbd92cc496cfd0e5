"""Expressions from files: the answers of ``re``, in bounded time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainwright.config.patterns import Pattern
from trainwright.engines.torch.optim_extra import is_target
from trainwright.recipes.quantization.choosing import fits
from trainwright.recipes.selecting import select_layers, select_parameters

NAMES = [
    *("encoder.layer.0.attention.self.query.weight", "encoder.layer.11.output.LayerNorm.bias", "lm_head.weight"),
    *(
        "",
        "a",
        "layer",
        "transformer.h.10.mlp.c_fc.weight",
        "model.layers.3.mlp.experts.7.gate_proj.weight",
        "größe.weight",
    ),
]

#: As recipes have them, also those that SparseML and llm-compressor come with.
USUAL = [
    *(
        ".*weight",
        "bert.encoder.*dense.weight",
        r".*[04].weight",
        r"^encoder\.layer\.(0|11)\.",
        r".*\.(query|key)\.weight$",
    ),
    *(
        r"(?!lm_head).*weight",
        r".*(?<!LayerNorm)\.weight$",
        r"(?i)ENCODER.*",
        r"model\.layers\.\d+\.mlp\.experts\.\d+\..*",
    ),
    *(
        r"bias|LayerNorm|layer\.[3-9]|layer\.1(?!1)|layer\.2(?!3)",
        r".*\bmlp\b",
        r"[^.]+\.[^.]+\.\w{1,3}?\..*",
        "",
        "größe",
    ),
    *(r"(?:encoder|decoder)(?:\.\w+){2,4}", r"(?P<part>encoder)\..+", r"(?x) encoder  # a comment", r"\Aencoder.*\Z"),
]


@pytest.mark.parametrize("pattern", USUAL)
def test_usual_patterns_mean_what_they_mean_to_re(pattern: str) -> None:
    ours, theirs = Pattern(pattern), re.compile(pattern)
    for name in NAMES:
        assert ours.match(name) == bool(theirs.match(name)), name
        assert ours.fullmatch(name) == bool(theirs.fullmatch(name)), name
        assert ours.search(name) == bool(theirs.search(name)), name


#: Flags for a part of a pattern, with texts on which they matter.
FLAGGED = [
    *((r"(?a:\w)", "é"), (r"(?a:\w+)\.x", "é.x"), (r"(?a:\B)", "éa"), (r"(?a:a\b)", "aé"), (r"(?a:[\w.])", "é")),
    *((r"(?i)(?-i:b)", "B"), (r"(?i)a(?-i:[ab])", "AB"), (r"(?i)(?-i:Layer)norm", "LayerNORM"), (r"(?i:K)", "\u212a")),
    *((r"(?ia:k)", "\u212a"), (r"(?a)(?u:\w)", "é"), (r"(?s)(?-s:.)", "\n"), (r"(?m)a\n(?-m:^)b", "a\nb")),
]


@pytest.mark.parametrize(("pattern", "text"), FLAGGED)
def test_flags_of_a_part_mean_what_they_mean_to_re(pattern: str, text: str) -> None:
    assert Pattern(pattern).match(text) == bool(re.match(pattern, text))
    assert Pattern(pattern).fullmatch(text) == bool(re.fullmatch(pattern, text))


singles = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", r"\.", "^", "$", r"\b", r"\B", "ab", "(?<=a)", "(?<!ab)"]
)
repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?", "{2,}", "{0,2}?"])
patterns = st.recursive(
    singles,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        # One level of repeats: with more, re itself does not come back.
        st.tuples(singles, repeats).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        inner.map(lambda item: f"(?={item})"),
        inner.map(lambda item: f"(?!{item})"),
        inner.map(lambda item: f"(?i:{item})"),
    ),
    max_leaves=6,
)


@given(patterns, st.text("abAB.1\n", max_size=7))
def test_answers_are_those_of_re(pattern: str, text: str) -> None:
    ours, theirs = Pattern(pattern), re.compile(pattern)
    assert ours.match(text) == bool(theirs.match(text))
    assert ours.fullmatch(text) == bool(theirs.fullmatch(text))
    assert ours.search(text) == bool(theirs.search(text))


#: With any of them ``re`` takes years over a name of 250 characters.
CATASTROPHIC = [
    *(
        r"(a+)+x",
        r"(a*)*b",
        r"(a|a)*b",
        r"(a|aa)+b",
        r"(.*)*(.*)*y$",
        r"((((.*.*)*.*)*.*)*.*)*z",
        r"(\w+\.?)+\s",
        "a?" * 60 + "b",
    ),
    *(
        r".*.*.*.*.*.*.*.*.*x",
        r"(?=.*(.*)*q).*",
        r"(?:(?:a{1000}){1000}){1000}",
        r"((a|b)*(c|a)*)*d",
        r"(?:(?:(?:a?b?)*c?)*d?)*f",
    ),
    *(r"([a-zA-Z]+)*1", r"(x?){5000}x", r"^(([a-z])+.)+[A-Z]([a-z])+$", r"(?!(a+)+b)(a+)+b", r"(?<=a)(a+)+b"),
]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("pattern", CATASTROPHIC)
def test_a_pattern_with_endless_ways_ends(pattern: str) -> None:
    assert not Pattern(pattern).match("a" * 250)
    assert not Pattern(pattern).fullmatch("a" * 250)
    assert not Pattern(pattern).search("a" * 250)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (
            r"(a)\1",
            "a reference to a group, such as \\\\1, cannot be matched in bounded time; write the alternatives out",
        ),
        (r"(a)?(?(1)b|c)", "a condition on a group"),
        (r"(?>a+)b", "an atomic group"),
        (r"a++b", "a possessive repeat"),
        ("(", "is not a regular expression: missing"),
        ("a{99999999999}", "is not a regular expression"),
        ("(" * 900 + ")" * 900, "too many brackets inside each other"),
        ("a" * 5000, "of 5000 characters is too long"),
        ("(?<=a|bc)d", "a look-behind, .* must have one length; write one look-behind for each"),
        ("(?<!a*)d", "must have one length"),
        (r"x(?!(?<=\b|y))", "must have one length"),
        ("(?:.(?=(?:.(?=(?:.(?=.*))*))*))*x", "repeats what repeats itself"),
    ],
)
@pytest.mark.timeout(30)
def test_what_cannot_be_matched_is_refused_with_a_way_out(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pattern(pattern).match("abcab" * 50)


#: Few repeats, each of which tries hundreds of alternatives or a long sequence.
WIDE = [
    "(?:.*(?=.*(?=.*(?=.*(?:"
    + "|".join(f"[^{a}]{b}*." for a in "zyxwvu" for b in "abcdefghijklmnopqrstuvwxyz")
    + ")!))))",
    "(?:.*(?=.*(?=.*(?=.*(" + "(?:a|b)?" * 200 + ")!))))",
    "(?:.*(?=.*(?=.*(?=.*(" + "a?.?" * 400 + ")!))))",
]


@pytest.mark.slow
@pytest.mark.timeout(8)
@pytest.mark.parametrize("pattern", WIDE, ids=["alternatives", "groups", "a sequence"])
def test_wide_patterns_are_refused_at_once(pattern: str) -> None:
    with pytest.raises(ValueError, match="takes too long"):
        Pattern(pattern).search("model.layers.31.self_attn.q_proj.weight" * 6)


def test_a_long_text_is_no_obstacle_to_an_ordinary_pattern() -> None:
    assert Pattern(r"(?!head)(\w+\.)*(weight|bias)$").match("layer." * 2_000 + "weight")


@pytest.mark.timeout(30)
def test_nothing_that_takes_patterns_hangs() -> None:
    layer = "a" * 60
    model = torch.nn.Sequential()
    model.add_module(layer, torch.nn.Linear(1, 1))
    for choose in (select_parameters, select_layers):
        with pytest.raises(ValueError, match="fits nothing in this model"):
            choose(model, "re:(a+)+x")
        with pytest.raises(ValueError, match=r"params: .*write the alternatives out"):
            choose(model, r"re:(a)\1", "params")
    assert fits(layer, model[0], ["re:(a+)+x"]) is None
    assert not is_target(layer, "(a+)+x")
    assert not is_target(layer, ["(a+)+x"])
    assert is_target(layer, ["(a+)+"])


@pytest.mark.timeout(30)
def test_comments_before_a_recipe_do_not_hang(tmp_path: Path) -> None:
    from trainwright.recipes.language.sources import front_matter

    comments = "<!---->" * 40_000
    assert front_matter(f"{comments}\n---\nrate: 1\n---\n") == "\n\nrate: 1"
    assert front_matter(f"{comments}x\n---\nrate: 1\n---\n") is None
    assert front_matter("<!-->\n---\nrate: 1\n---\n") is None
