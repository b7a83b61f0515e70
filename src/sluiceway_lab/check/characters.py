"""Asks whether characters of several bytes, and so of several tokens, are streamed whole."""

from __future__ import annotations

from sluiceway_lab.check.context import CheckContext
from sluiceway_lab.check.question import Finding, Question, by_faults, unknown
from sluiceway_lab.load.record import Grade
from sluiceway_lab.load.transcript import Transcript

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_SCRIPTS = "\u041f\u0440\u0438\u0432\u0435\u0442 \u00fcber \u00e9t\u00e9 \u0928\u092e\u0938\u094d\u0924\u0947 "
_PROMPTS = (
    "Repeat this line for ever: " + "\U0001f600\U0001f680\U0001f9ea\U0001f1ea\U0001f1fa " * 6,
    "\u6f22\u5b57\u4eee\u540d\uff0c\u4e16\u754c\u4f60\u597d\u3002" * 6,
    _SCRIPTS * 3,
)


async def _ask(context: CheckContext) -> Finding:
    n_tokens = context.config.tokens
    faults: list[str] = []
    blemishes: list[str] = []
    n_wide = 0
    for prompt in _PROMPTS:
        said, whole = await context.stream(prompt, n_tokens), (await context.plain(prompt, n_tokens)).text
        again = (await context.plain(prompt, n_tokens)).text
        n_wide += sum(not character.isascii() for character in whole)
        faults += broken_pieces(said, whole)
        if said.text != whole:
            (faults if whole == again else blemishes).append("the pieces of the stream are not the text of the whole")
    found = by_faults(faults, blemishes, f"{n_wide} characters beyond ASCII, none broken, streamed as whole")
    if not n_wide and found.grade is Grade.PASS:
        return unknown("the model answered in ASCII alone")
    return found


def broken_pieces(said: Transcript, whole: str) -> list[str]:
    """Return the broken characters of a stream that the complete answer does not have.

    The model itself may produce nonsense, or an answer that ends within a character.
    """
    faults = []
    n_broken = said.text.count(_BROKEN) - whole.count(_BROKEN)
    if n_broken > 0:
        faults.append(f"{n_broken} replacement characters in the stream that are not in the whole")
    if any("\ud800" <= character <= "\udfff" for character in said.text):
        faults.append("half of a surrogate pair")
    return faults


QUESTION = Question("characters", "Are characters of several tokens streamed whole?", _ask)
