"""One JSON object, as it stands in a file."""

import json

from training.sources.rows import Malformed, Row


def parse(text: bytes, origin: str) -> Row | Malformed:
    """Parse the text of one object, which may begin with a byte order mark.

    Strings keep what JSON lets them hold: any character, and halves of a surrogate pair too.
    """
    try:
        # utf-8-sig, as files from Windows that were joined have such marks between them.
        values = json.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return Malformed(origin, f"is not UTF-8 (byte {error.start + 1}): save the file in this encoding")
    except json.JSONDecodeError as error:
        if b"\0" in text:
            return Malformed(origin, "has NUL bytes (of a file that was not written to its end?): remove the line")
        return Malformed(
            origin,
            f"is not valid JSON ({error.msg} at character {error.pos + 1}): each record has to be one JSON object",
        )
    except ValueError:
        # All else that is no error of JSON: Python bounds the digits of an integer.
        return Malformed(origin, "has a number of too many digits: write it as a string")
    except RecursionError:
        return Malformed(origin, "is nested too deeply: flatten its arrays and objects")
    if not isinstance(values, dict):
        return Malformed(origin, f"is a JSON {_NAMES[type(values)]}: each record has to be one JSON object")
    return Row(origin, values)


_NAMES = {
    list: "array",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
