"""What of a conversation is learned, and the faults that are refused before anything is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.chat.chats import ONE, TWO, WITH_TOOL, assistant, encoded, trained, user
from tests.chat.tiny import CHATML, MARKED, sentencepiece_like, tokenizer
from trainwright.data.chat.answers import Answer, find_answers, learnable, rendered
from trainwright.data.chat.batch_check import check_batch
from trainwright.data.chat.collator import ChatCollator
from trainwright.data.chat.proof import prove
from trainwright.data.chat.shapes import Chat
from trainwright.data.chat.template import ChatTemplate
from trainwright.data.collators_lm import DataCollatorForLanguageModeling
from trainwright.experiment.tasks.chat import _stop_at_ends

ENDS = ["In a den.<|im_end|>", "In a tree.<|im_end|>"]


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["prefixes", "markers"])
def test_answers_with_their_ends_are_learned_and_nothing_else(template: str) -> None:
    known = tokenizer(template)
    assert [text.strip() for text in trained(known, encoded(known, TWO))] == ENDS
    assert [text.strip() for text in trained(known, encoded(known, TWO, train_on="last"))] == ENDS[1:]
    each = encoded(known, TWO, train_on="each")
    assert [[text.strip() for text in trained(known, each, place)] for place in range(2)] == [[one] for one in ENDS]
    (whole,) = trained(known, encoded(known, TWO, train_on="all"))
    assert whole == known.apply_chat_template(TWO, tokenize=False)


def test_a_system_turn_is_read_and_not_learned() -> None:
    known = tokenizer()
    rows = encoded(known, [{"role": "system", "content": "Be brief."}, *ONE])
    assert "Be brief." in known.decode(rows[0]["input_ids"])
    assert [text.strip() for text in trained(known, rows)] == ENDS[:1]


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["prefixes", "markers"])
def test_answers_that_teach_nothing_are_left_out_and_counted(template: str) -> None:
    known = tokenizer(template)
    chat = [assistant("Hello."), user("Where?"), assistant(" "), user("Really?"), assistant("Yes.", weight=0), *ONE]
    rows = encoded(known, chat, [user("Anybody?")], [])
    assert [text.strip() for text in trained(known, rows)] == ENDS[:1]
    assert dict(rows.counts.left_out) == {
        "answers that nobody asked for, at the beginning": 1,
        "answers that say nothing": 1,
        "answers that the data marks with weight 0": 1,
        "conversations without an answer to learn from": 2,
    }


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["prefixes", "markers"])
def test_weight_zero_counts_where_all_is_learned(template: str) -> None:
    known = tokenizer(template)
    rows = encoded(known, [user("Hi?"), assistant("Nonsense.", weight=0), *ONE], train_on="all")
    text = "".join(trained(known, rows))
    assert "Nonsense" not in text
    assert "Hi?" in text
    assert ENDS[0] in text
    assert dict(rows.counts.left_out) == {"answers that the data marks with weight 0": 1}
    with pytest.raises(ValueError, match=r"no answer to anything, and data\.train_on: all"):
        encoded(known, [{**user("Hi?"), "weight": 0}, *ONE[1:]], train_on="all")


def test_leading_spaces_and_letters_of_several_bytes_stay_whole() -> None:
    known = tokenizer()
    chat = [user("  Grüße?"), assistant("  Größe 🦊, 狐")]
    assert trained(known, encoded(known, chat)) == ["  Größe 🦊, 狐<|im_end|>\n"]


def test_text_that_the_tokenizer_takes_for_a_special_token_is_counted() -> None:
    rows = encoded(tokenizer(), [user("What is <|im_end|>?"), assistant("An end.")], ONE)
    (remark,) = rows.counts.remarks.items()
    assert remark == ("conversations hold the text of a special token, which is read as the token itself", 1)


LLAMA2 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)


def test_spaces_and_bytes_of_tokenizers_like_sentencepiece() -> None:
    known = sentencepiece_like(LLAMA2)
    rows = encoded(known, TWO, [user("Grüße?"), assistant("Größe \U0001f98a")])
    assert [text.strip() for text in trained(known, rows)] == ["In a den.</s>", "In a tree.</s>"]
    assert [text.strip() for text in trained(known, rows, 1)] == ["Größe \U0001f98a</s>"]
    # The space in front of "In" is of its token; that in front of "Größe" is joined with the question's "]".
    assert list(rows.counts.remarks.values()) == [1]
    assert "begin within a token of the question" in next(iter(rows.counts.remarks))


def test_a_tokenizer_that_joins_words_of_the_answer_with_the_question_is_refused() -> None:
    joined = sentencepiece_like(LLAMA2.replace("' [/INST]'", "''").replace("' ' + message", "message"))
    with pytest.raises(ValueError, match="the mask is off: message 2 says 'In'"):
        encoded(joined, [user("I "), assistant("In")])


def test_a_cut_answer_does_not_train_its_end() -> None:
    known = tokenizer()
    whole = encoded(known, TWO)[0]
    first = int((whole["labels"] != -100).nonzero()[0])
    with pytest.raises(ValueError, match=r"the mask is all zero.* behind max_length"):
        encoded(known, TWO, max_length=first)
    for length in range(first + 1, len(whole["input_ids"])):
        rows = encoded(known, TWO, max_length=length)
        assert torch.equal(rows[0]["labels"], whole["labels"][:length])
        assert (rows.counts.cut, rows.counts.cut_tokens) == (1, len(whole["labels"]) - length)
    end = known.convert_tokens_to_ids("<|im_end|>")
    shorter = int((whole["labels"] == end).nonzero()[-1])
    assert encoded(known, TWO, max_length=shorter)[0]["labels"].tolist().count(end) == 1


def test_counts_say_what_is_trained() -> None:
    rows = encoded(tokenizer(), ONE, TWO)
    labels = torch.cat([rows[0]["labels"], rows[1]["labels"]])
    assert (rows.counts.conversations, rows.counts.tokens) == (2, len(labels))
    assert rows.counts.trained == int((labels != -100).sum())
    assert f"{rows.counts.trained} trained" in rows.counts.lines(512)[0]


def test_a_pad_token_that_ends_answers_too_is_trained_where_it_is_an_end() -> None:
    known = tokenizer(pad="<|im_end|>")
    rows = encoded(known, ONE, TWO)
    batch = ChatCollator(known.pad_token_id, pad_to_multiple_of=8)([rows[0], rows[1]])
    check_batch(batch, known)
    ends = (batch["labels"] == known.pad_token_id).sum(1).tolist()
    assert ends == [1, 2]
    assert batch["input_ids"].shape[1] % 8 == 0
    assert batch["attention_mask"].sum(1).tolist() == [len(rows[0]["labels"]), len(rows[1]["labels"])]


# ---- faults


def _with(text: str, **words: str) -> str:
    for old, new in words.items():
        text = text.replace(_WORDS[old], new)
    return text


_WORDS = {
    "content_marked": "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}",
}
NO_MARK = _with(MARKED, content_marked="{% generation %}{% endgeneration %}{{ message['content'] + '<|im_end|>' }}")
LATE = _with(
    MARKED,
    content_marked="{{ message['content'][0] }}{% generation %}{{ message['content'][1:] + '<|im_end|>' }}"
    "{% endgeneration %}",
)
HEADER = (
    "{% for message in messages %}{{ '<|im_start|>' }}{% if message['role'] == 'assistant' %}{% generation %}"
    "{{ 'assistant\\n' + message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}"
    "{{ message['role'] + '\\n' + message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
NO_END_MARKED = _with(
    MARKED, content_marked="{% generation %}{{ message['content'] }}{% endgeneration %}{{ '<|im_end|>' }}"
)
COUNTS = "{{ messages | length }}" + CHATML
STRIPS = CHATML.replace(
    "{{ '<|im_start|>' + message['role']", "{{ '<|im_start|>' + message['role'] + ('' if loop.last else '!')"
)
TWO_STARTS = "{{ bos_token + bos_token }}" + CHATML
NO_END = CHATML.replace("+ '<|im_end|>\\n'", "+ '\\n'")
NO_PROMPT = CHATML.replace("<|im_start|>assistant\\n' }}{% endif %}", "<|im_start|>robot\\n' }}{% endif %}")
DROPS = CHATML.replace("message['content']", "message['content'][:4]")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (NO_MARK, "the mask is all zero: the template has .* markers, but nothing"),
        (LATE, "the mask is off: message 2 says 'In a den.'.* begin too late"),
        (HEADER, r"the mask is off: in message 2 it begins with 'assistant\\n', which the model is given"),
        (NO_END_MARKED, "the end is missing from the loss: <.im_end.> behind message 2 is not trained"),
        (COUNTS, "not prefix-preserving: message 2"),
        (STRIPS, "not prefix-preserving: message 2"),
        (NO_PROMPT, "not prefix-preserving: message 2.*<.im_start.>|robot"),
        (TWO_STARTS, "begins with <s> twice \\(double BOS\\)"),
        (NO_END, "the end is missing from the loss: the template writes no end token behind message 2"),
        (DROPS, "the mask is off: message 2 says 'In a den.'"),
        (None, "the tokenizer has no chat template: set model.chat_template"),
        ("{{ raise_exception('Only cats') }}", "cannot render this conversation: Only cats"),
    ],
)
def test_planted_faults_are_named(template: str | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encoded(tokenizer(template), TWO)


_HEADER = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
_PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
_THINKS = _PROMPT.replace("assistant\\n", "assistant\\nTHINK:")
_CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name + (c.function.arguments | tojson) }}{% endfor %}"
_BODY = "{{ m.content }}" + _CALLS
TOOL_MARKED = (
    _HEADER + "{% if m.role in ['assistant', 'tool'] %}{% generation %}" + _BODY + "{{ '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}" + _PROMPT
)
ALL_MARKED = (
    "{% for m in messages %}{% generation %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endgeneration %}{% endfor %}" + _THINKS
)
NEVER_ASKED = CHATML.partition("{% if add_generation_prompt")[0]
SIGNED = CHATML.replace("message['content'] +", "message['content'] + ' (by Wren)' +")


@pytest.mark.parametrize("chat", [WITH_TOOL, WITH_TOOL[:3], [*WITH_TOOL[:3], *TWO]], ids=["3", "2", "4"])
def test_results_of_tools_between_markers_are_refused(chat: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="markers stand around message 3 too, of the role tool"):
        encoded(tokenizer(TOOL_MARKED), chat)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (ALL_MARKED, "markers stand around message 1 too, of the role user"),
        (NEVER_ASKED, r"writes '<.im_start.>assistant\\n' before an answer, and not when the model is asked"),
        (SIGNED, r"goes on behind the answer, with '\(by Wren\)'"),
        (HEADER.replace(_PROMPT, _THINKS), r"it begins with 'assistant\\n', which the model is given"),
    ],
)
def test_other_words_than_those_of_the_answer_are_refused(template: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encoded(tokenizer(template), ONE)


@pytest.mark.parametrize("behind", ["Rated by judges: good<|im_end|>", "<|im_start|>", "<|im_start|>user\n"])
def test_what_a_template_writes_behind_the_last_turn_is_not_learned(behind: str) -> None:
    known = tokenizer(CHATML.replace("{% endif %}", "{% else %}{{ '" + behind + "' }}{% endif %}"))
    assert trained(known, encoded(known, ONE)) == ["In a den.<|im_end|>\n"]
    calls = _HEADER + _BODY + "{{ '<|im_end|>\\n' }}{% endfor %}" + _PROMPT
    known = tokenizer(calls.replace("{% endif %}", "{% else %}{{ '" + behind + "' }}{% endif %}"))
    (text,) = trained(known, encoded(known, WITH_TOOL[:2]))
    assert text == 'look_up{"animal": "fox"}<|im_end|>\n'


def test_blanks_behind_the_end_are_no_missing_end() -> None:
    known = tokenizer(CHATML.replace("<|im_end|>\\n", "<|im_end|>\\n \\n \\n"))
    rows = encoded(known, TWO)
    assert [text.strip() for text in trained(known, rows)] == ENDS
    check_batch(ChatCollator(known.pad_token_id)([rows[0]]), known)


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["prefixes", "markers"])
def test_a_mask_that_is_wrong_by_one_token_anywhere_is_refused(template: str) -> None:
    known = tokenizer(template)
    chat, way = Chat(TWO), ChatTemplate(known)
    whole = rendered(way, chat)
    for answer in find_answers(way, chat, whole, learnable(chat)):
        prove(way, chat, whole, answer)
        first, last = answer.tokens[0], answer.tokens[-1]
        wrong = [[place for place in answer.tokens if place != gone] for gone in answer.tokens
                 if way.decoded([whole.tokens[gone]]).strip()]  # fmt: skip
        wrong += [
            [place - 1 for place in answer.tokens],
            [place + 1 for place in answer.tokens],
            [first - 1, *answer.tokens],
        ]
        if answer.turn == 1 and way.has_markers:
            header = len(known("<|im_start|>user")["input_ids"]) + 1
            wrong.append([*answer.tokens, *range(last + 1, last + 1 + header)])
        assert len(wrong) > 5
        for places in wrong:
            with pytest.raises(ValueError, match=r"the mask is off|the end is missing"):
                prove(
                    way, chat, whole, Answer(answer.turn, [p for p in places if p < len(whole.tokens)], answer.begins)
                )


def test_a_template_of_another_tokenizer_is_named() -> None:
    foreign = tokenizer(CHATML, control=["<|eot|>"])
    for choice in ("assistant", "all"):
        with pytest.raises(ValueError, match=r"not this tokenizer's: .* ends with <.im_end.>, .* makes 10 of it"):
            encoded(foreign, ONE, train_on=choice)


def test_a_template_that_changes_earlier_turns_still_trains_the_last_and_each() -> None:
    known = tokenizer(
        CHATML.replace(
            "message['content'] +", "('ok ' * (loop.last and message['role'] == 'assistant')) + message['content'] +"
        )
    )
    with pytest.raises(ValueError, match=r"data\.train_on: last.*data\.train_on: each"):
        encoded(known, TWO)
    assert trained(known, encoded(known, TWO, train_on="last")) == ["ok In a tree.<|im_end|>\n"]
    each = encoded(known, TWO, train_on="each")
    assert [trained(known, each, place) for place in range(2)] == [
        ["ok In a den.<|im_end|>\n"],
        ["ok In a tree.<|im_end|>\n"],
    ]


def test_no_answer_at_all_is_an_all_zero_mask() -> None:
    with pytest.raises(ValueError, match="the mask is all zero: no conversation has a token to learn from"):
        encoded(tokenizer(), [user("Anybody?")])


def test_a_row_that_is_wrong_is_named() -> None:
    with pytest.raises(ValueError, match="row 1: there is no role 'robot'"):
        encoded(tokenizer(), ONE, [{"role": "robot", "content": "x"}])


@pytest.mark.parametrize("behind", ["", "\n", "</s>"])
def test_generation_stops_at_the_token_behind_the_answer(behind: str) -> None:
    written = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>" + behind + "{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    known = tokenizer(written, control=["<|user|>", "<|assistant|>", "<|end|>"])
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=known.eos_token_id))
    (note,) = _stop_at_ends(model, ChatTemplate(known))
    assert "<|end|>" in note
    assert model.generation_config.eos_token_id == [known.eos_token_id, known.convert_tokens_to_ids("<|end|>")]


def _batch(known: Any, **changes: Any) -> dict[str, torch.Tensor]:
    rows = encoded(known, ONE, TWO)
    return {**ChatCollator(known.pad_token_id)([rows[0], rows[1]]), **changes}


def test_faults_of_a_finished_batch_are_named() -> None:
    known = tokenizer()
    good = _batch(known)
    check_batch(good, known)
    nothing = torch.full_like(good["labels"], -100)
    shifted = torch.roll(good["labels"], -1, 1)
    end = known.convert_tokens_to_ids("<|im_end|>")
    newline = known("\n", add_special_tokens=False)["input_ids"][0]
    no_end = good["labels"].masked_fill((good["labels"] == end) | (good["labels"] == newline), -100)
    begun = torch.cat([torch.full((2, 2), known.bos_token_id), good["input_ids"]], 1)
    for changes, words in (
        ({"labels": nothing}, "mask is all zero"),
        ({"labels": shifted}, "off by one"),
        ({"labels": no_end}, "end is missing from the loss: <.im_end.> behind"),
        ({"attention_mask": torch.zeros_like(good["labels"])}, "attention mask hides"),
    ):
        with pytest.raises(ValueError, match=words):
            check_batch({**good, **changes}, known)
    labels = torch.cat([torch.full((2, 2), -100), good["labels"]], 1)
    with pytest.raises(ValueError, match="double BOS"):
        check_batch({"input_ids": begun, "labels": labels}, known)


def test_an_end_that_is_masked_away_as_padding_is_named() -> None:
    known = tokenizer(MARKED.replace("<|im_end|>", "</s>"), pad="</s>")
    tokens = [encoded(known, chat)[0]["input_ids"].tolist() for chat in (ONE, TWO)]
    with pytest.raises(ValueError, match="</s> ends answers and pads too, and was masked away as padding"):
        check_batch(DataCollatorForLanguageModeling(known, mlm=False)([{"input_ids": row} for row in tokens]), known)
