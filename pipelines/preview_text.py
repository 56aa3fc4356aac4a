"""How a row's documents are shown in a terminal, in a pipe, and as a list of ids."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from components.tokenize_dataset.preview import Piece

# Backgrounds alternate from token to token, so that each is seen. What is learned is underlined too, so that
# it can be told without its colour.
_READ = ("grey93 on grey19", "grey93 on grey30")
_LEARNED = ("bold underline grey100 on dark_green", "bold underline grey100 on green4")

_NAMES = {"\n": "↵", "\t": "→", "\r": "␍"}


def print_facts(console: Console, facts: Mapping[str, str]) -> None:
    """Print what is known of a row, a line each; a terminal's long lines go on below their beginning."""
    if not console.is_terminal:
        for label, fact in facts.items():
            console.print(Text(f"{label:<10}{fact}"), soft_wrap=True)
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, fact in facts.items():
        table.add_row(f"[bold]{label}[/bold]", Text(fact))
    console.print(table)


def print_text(console: Console, pieces: Sequence[Piece], in_colour: bool) -> None:
    """Print a document as its text.

    Args:
        console: Where to.
        pieces: Its tokens.
        in_colour: Else what is learned is in brackets.
    """
    text = Text()
    for number, piece in enumerate(pieces):
        shown, breaks = _shown(piece.text)
        if in_colour:
            text.append(shown, (_LEARNED if piece.supervised else _READ)[number % 2])
        else:
            text.append(f"[{shown}]" if piece.supervised else f"{shown}|")
        text.append(breaks)
    text.rstrip()
    console.print(text, soft_wrap=not in_colour)


def print_ids(console: Console, pieces: Sequence[Piece], in_colour: bool) -> None:
    """Print a document as a list of its tokens with their ids; without colour, a line each.

    Args:
        console: Where to.
        pieces: Its tokens.
        in_colour: Whether the terminal has colours.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("Id", justify="right")
    table.add_column("")
    table.add_column("Token", overflow="fold")
    for piece in pieces:
        ids, learned, shown = " ".join(map(str, piece.ids)), "learned" * piece.supervised, _shown(piece.text)[0]
        if in_colour:
            token = Text.assemble((shown, (_LEARNED if piece.supervised else _READ)[0]))
            table.add_row(ids, learned, token)
        else:
            console.print(Text(f"{ids:>7}  {learned:<7}  {shown}"), soft_wrap=True)
    if in_colour:
        console.print(table)


def print_legend(console: Console, in_colour: bool) -> None:
    """Print what the marks of `print_text` mean."""
    learned, read = "what the model learns to say", "what it only reads"
    if in_colour:
        console.print(Text.assemble((f" {learned} ", _LEARNED[0]), " ", (f" {read} ", _READ[0])))
    else:
        console.print(Text(f"[{learned}] {read}|"))


def _shown(text: str) -> tuple[str, str]:
    """A token's text with what is not seen made visible, and the line breaks that follow it."""
    shown = "".join(
        character if character.isprintable() else _NAMES.get(character, f"⟨U+{ord(character):04X}⟩")
        for character in text
    )
    return shown or "⟨⟩", "\n" * text.count("\n")
