"""Chat templates: the texts of a conversation, and which of their characters the assistant says."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from components.tokenize_dataset.messages import Conversation
from components.tokenize_dataset.messages_parse import Message
from components.tokenize_dataset.template_renderer import Renderer
from components.tokenize_dataset.template_special import SpecialTokens
from components.tokenize_dataset.template_structure import Structure, example, structure_of
from components.tokenize_dataset.unusable import UnusableRow
from training.errors import UserError

_OPENS_THOUGHT = re.compile(r"<think>\s*\Z")

Span = tuple[int, int]
"""First character and the one after the last."""


class Text(NamedTuple):
    """A rendered text.

    Attributes:
        text: What the model reads.
        spans: What the assistant says in it: each answer with what ends its turn.
        marks: If each answer stands between the template's marks, and these are special tokens that are nowhere
            else in it: which of the generation prompts in the text comes before each answer, counted from 0.
    """

    text: str
    spans: list[Span]
    marks: list[int] | None


class Marks(NamedTuple):
    """What a template writes around a plain answer.

    Attributes:
        before: The generation prompt.
        opening: What stands between it and the answer's own text, such as an empty thought.
        end: What ends the turn, without the white space after it.
        are_special: Whether the first holds a special token, and the last is one, which no message can hold.
    """

    before: str
    opening: str
    end: str
    are_special: bool


class ChatTemplate:
    """Renders conversations so that what the assistant says is known, for any template.

    What a template makes of an answer is what the rendering gains over the prompt that the model is given at this
    turn. White space after what ends the turn is left out: generation has stopped there. `{% generation %}`
    markers are not asked: where they are right they say the same, and many leave out the end of the turn.

    A template may render an earlier turn in another way when others follow it (Qwen3 removes its thoughts; some
    put the system message into the last question). Then one text cannot show the model every answer after the
    prompt that it will be given, so the conversation becomes as few texts as can: each teaches the answers that
    stand in it as they were first rendered.

    What two kinds of template leave out is added. Where the generation prompt opens a thought that the template
    does not write of an answer (DeepSeek-R1), the answer is taught with its thought, or an empty one, and the end
    of the thought. Where nothing ends an answer (Alpaca), the end-of-text token does, at which generation stops;
    each answer is then a text of its own, as earlier ones have no end when the model is asked.

    Args:
        tokenizer: Has the template.
        special: Its special tokens.

    Raises:
        UserError: The template cannot teach a plain answer: it fails, leaves it out, begins it in another way than
            its own generation prompt, or does not end it, and nor does the tokenizer.
    """

    def __init__(self, tokenizer: Any, special: SpecialTokens) -> None:
        self._renderer = Renderer(tokenizer)
        self._special = special
        self._lost: dict[Structure, str | None] = {}
        self._located: dict[Structure, bool] = {}
        self._end_of_text: str = tokenizer.eos_token or ""
        self._ends_answers = True
        self.marks = Marks("", "", "", are_special=False)
        self.marks = self._probe()

    def render(self, conversation: Conversation) -> list[Text]:
        """The texts of a conversation; the last one's last span is the conversation's last answer.

        Raises:
            UnusableRow: The template refuses the conversation, leaves some of it out, or begins an answer in
                another way than its generation prompt.
        """
        structure = structure_of(conversation)
        if structure not in self._lost:
            self._learn(structure)
        if lost := self._lost[structure]:
            raise UnusableRow(lost)
        if self._located[structure] and (text := self._locate(conversation)):
            return [text]
        return self._by_prefixes(conversation)

    def _by_prefixes(self, conversation: Conversation) -> list[Text]:
        """The texts, from a rendering of the conversation up to each answer."""
        through: dict[int, tuple[str, Span]] = {}
        for turn, is_learned in enumerate(conversation.learned):
            if not is_learned:
                continue
            before = self._renderer.render(conversation, turn, answer_next=True)
            text = self._answered(conversation, turn + 1)
            if not text.startswith(before):
                message = conversation.messages[turn]
                answer = self._plain_answer(text, message) or _thoughtful_answer(before, text, message)
                text = before + answer if answer else text
            if not text.startswith(before):
                raise UnusableRow(
                    f"cannot be taught: the chat template begins message {turn + 1} in another way than its own "
                    "generation prompt does, so the model would not learn to answer this prompt. Choose a model "
                    "with another template, or use prompt and completion"
                )
            end = len(before) + len(text[len(before) :].rstrip())
            if end == len(before):
                raise UnusableRow(f"has an answer in message {turn + 1} that the chat template leaves out")
            through[turn] = text, (len(before), end)
        texts = []
        # The longest text first: it teaches all answers that are in it as they were.
        while through:
            last = max(through)
            whole = through[last][0]
            kept = [turn for turn, (text, (_, end)) in through.items() if whole.startswith(text[:end])]
            spans = [through[turn][1] for turn in kept]
            texts.append(Text(whole, spans, self._marks_of(whole, spans)))
            through = {turn: rendered for turn, rendered in through.items() if turn not in kept}
        return texts[::-1]

    def _answered(self, conversation: Conversation, num_messages: int) -> str:
        """The text of a conversation's first messages, of which the last is an answer, with its end."""
        text = self._renderer.render(conversation, num_messages, answer_next=False)
        return text if self._ends_answers else text.rstrip() + self._end_of_text

    def _plain_answer(self, text: str, message: Message) -> str | None:
        """The answer at the end of a text, if it is nothing but its content between the template's marks.

        It tells where the answer begins even if the template renders what comes before in another way once there
        is an answer, as some do that put the system message into the last question.
        """
        before, opening, end, _ = self.marks
        for content in (message["content"], message["content"].strip()):
            answer = f"{opening}{content}{end}"
            if end and len(message) == 2 and text.rstrip().endswith(f"{before}{answer}"):
                return answer
        return None

    def _marks_of(self, text: str, spans: Sequence[Span]) -> list[int] | None:
        before, _, end, are_special = self.marks
        for start, stop in spans:
            said = text[start:stop]
            if not (are_special and text.endswith(before, 0, start) and said.endswith(end)):
                return None
            if self._special.first_in(said.removesuffix(end)):
                return None
        return [text.count(before, 0, start) - 1 for start, _ in spans]

    def _locate(self, conversation: Conversation) -> Text | None:
        """The text in one rendering, if its answers stand between the template's marks just as they should.

        The generation prompt holds a special token, which messages cannot, so it stands only where an answer
        begins.
        """
        text = self._renderer.render(conversation, len(conversation.messages), answer_next=False)
        before, opening, end, _ = self.marks
        parts = text.split(before)
        answers = [turn for turn, message in enumerate(conversation.messages) if message["role"] == "assistant"]
        if len(parts) != len(answers) + 1:
            return None
        spans, marks = [], []
        start = len(parts[0])
        for mark, (turn, part) in enumerate(zip(answers, parts[1:], strict=True)):
            start += len(before)
            content = conversation.messages[turn]["content"]
            answer = f"{opening}{content}{end}"
            if not part.startswith(answer):
                answer = f"{opening}{content.strip()}{end}"
                if not part.startswith(answer):
                    return None
            if conversation.learned[turn]:
                spans.append((start, start + len(answer)))
                marks.append(mark)
            start += len(part)
        return Text(text, spans, marks)

    def _learn(self, structure: Structure) -> None:
        """Try an example of a structure: what of it the template loses, and whether one rendering tells all."""
        self._lost[structure], self._located[structure] = None, False
        conversation, parts = example(structure)
        try:
            texts = self._by_prefixes(conversation)
        except UnusableRow:
            # The example may be at fault; the row itself says what is wrong with it.
            return
        whole = "".join(text.text for text in texts)
        self._lost[structure] = next((lost for part, lost in parts.items() if part not in whole), None)
        if structure.is_plain and self.marks.are_special:
            self._located[structure] = texts == [self._locate(conversation)]

    def _probe(self) -> Marks:
        question, answer = "What is the question?", "This is the answer."
        messages: list[Message] = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
        asked = Conversation(messages, [False, True], None)
        try:
            before = self._renderer.render(asked, 1, answer_next=True)
            text = self._answered(asked, 2)
            self._ends_answers = answer not in text or bool(text.rpartition(answer)[2].strip())
            text = self._answered(asked, 2)
        except UnusableRow as error:
            raise UserError(
                f"the model's chat template cannot be used: a question and its answer {error}. Choose a model "
                "with another template, or use prompt and completion"
            ) from error
        if problem := self._problem(messages, before, text):
            raise UserError(
                f"the model's chat template {problem}: choose a model with another template, or use prompt and "
                "completion"
            )
        without = self._renderer.render(asked, 1, answer_next=False)
        if not (text.startswith(before) and before.startswith(without)):
            return self.marks
        opening, _, end = text.removeprefix(before).partition(answer)
        begin, end = before.removeprefix(without), end.rstrip()
        first_in = self._special.first_in
        are_special = first_in(begin) is not None and first_in(end) == end and first_in(opening) is None
        return Marks(begin, opening, end, are_special)

    def _problem(self, messages: Sequence[Message], before: str, text: str) -> str:
        """What keeps the template from teaching a question's answer; empty if nothing."""
        question, answer = (message["content"] for message in messages)
        for content, said_by in ((answer, "assistant"), (question, "user")):
            if content not in text:
                return f"leaves out the messages of the {said_by}, so there would be nothing to learn"
        if not text.startswith(before) and not (
            _thoughtful_answer(before, text, messages[1]) or self._thinks_first(messages)
        ):
            return (
                "begins an answer in another way than its own generation prompt does, so the model would not "
                "learn to answer this prompt"
            )
        if not text.rpartition(answer)[2].strip():
            return (
                "writes nothing after an answer, and its tokenizer has no end-of-text token, so the model could "
                "not learn to stop"
            )
        return ""

    def _thinks_first(self, messages: Sequence[Message]) -> bool:
        """Whether answers that have a thought begin as the generation prompt does, as of models that always do."""
        thought = [messages[0], {**messages[1], "reasoning_content": "This is the thought."}]
        try:
            return "This is the thought." in self._by_prefixes(Conversation(thought, [False, True], None))[0].text
        except UnusableRow:
            return False


def _thoughtful_answer(before: str, text: str, message: Message) -> str | None:
    """An answer with its thought, or an empty one, if the prompt opens a thought that the text has not.

    Args:
        before: The prompt.
        text: What the template makes of the conversation up to the answer: without its thought, or with it as its
            content has it.
        message: The answer.
    """
    opening = _OPENS_THOUGHT.search(before)
    if opening is None or not text.startswith(before[: opening.start()]):
        return None
    thought = message["content"].rpartition("</think>")[0]
    thought = message.get("reasoning_content") or thought.strip().removeprefix("<think>")
    said = text[opening.start() :].rpartition("</think>")[2]
    return f"{thought.strip()}\n</think>\n\n{said.lstrip()}"
