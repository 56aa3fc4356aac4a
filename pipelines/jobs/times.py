"""Times as people say them."""


def show_age(seconds: float) -> str:
    """How long ago something was, in its greatest unit."""
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (unit == "min" and seconds >= length):
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def show_duration(seconds: float) -> str:
    """How long something takes, in its two greatest units."""
    whole = round(max(0.0, seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole} s"
