"""Settings of the rule `document-order`: how documents are found in prompts, and what is done with their numbers."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from gateway.config.operator_patterns import compiled

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)
_PLACE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")


def _usable_name(name: str) -> str:
    if not _PLACE_NAME.fullmatch(name):
        raise ValueError(
            "expected up to 40 lower-case letters, digits, dashes and underscores, beginning with a letter "
            "(such as search-results)"
        )
    return name


def _empty_or_usable(regex: str) -> str:
    if regex:
        compiled(regex)
    return regex


def _empty_or_grouped(regex: str) -> str:
    if regex and not compiled(regex).has_group:
        raise ValueError(r"it has no group: put the number into parentheses, such as '^\[(\d+)\]'")
    return regex


_PlaceName = Annotated[str, AfterValidator(_usable_name)]
_OptionalRegex = Annotated[str, AfterValidator(_empty_or_usable)]
_NumberRegex = Annotated[str, AfterValidator(_empty_or_grouped)]


class DocumentPlaceSettings(BaseModel):
    """How one kind of documents is found in a prompt. Give one of three: `opening` and `closing`, `separator` and
    `after`, or `regex`. Documents that follow one another, with nothing but blanks, punctuation or the separator
    between them, are sorted among themselves."""

    model_config = _STRICT

    name: _PlaceName
    """What it is called in reports: up to 40 lower-case letters, digits, dashes and underscores, beginning with a
    letter."""

    opening: str = ""
    """The text with which every document begins, such as `<document`. It is no part of a longer word."""

    closing: str = ""
    """The text with which every document ends, such as `</document>`. A text in which documents are nested is left as
    it is."""

    separator: str = ""
    r"""The text between two documents, such as `"\n---\n"`."""

    after: str = ""
    r"""With `separator`: the text in front of the first document, such as `"Context:\n"`."""

    before: str = ""
    r"""With `separator`: the text behind the last document, such as `"\nQuestion:"`. Empty: the documents reach to the
    end of the text. Where it is missing in a text, no documents are found there."""

    regex: _OptionalRegex = ""
    r"""Regular expression in [RE2's syntax](../canonicalization.md#regular-expressions) that finds a whole document,
    such as `'^\[\d+\] .+$'`."""

    id: _OptionalRegex = ""
    """Regular expression that finds the id in a document, such as `'id="([^"]+)"'`; the first group is the id.
    Documents are then sorted by id, and only where every one has an id. Empty: they are sorted by a hash of their
    text."""

    number: _NumberRegex = ""
    r"""Regular expression that finds the number in a document, such as `'^\[(\d+)\]'`; the first group is the number,
    which does not count as content."""

    numbers: Literal["travel", "renumber"] = "travel"
    """What happens to numbers. `travel`: a document keeps its number, which is right for any application, and gains
    nothing where the number is only the position. `renumber`: documents are numbered anew in their new order, citations
    in the prompt follow, and answers cite the new numbers; only for applications that do not look up the numbers of an
    answer in their own list. Where numbers do not count up by one, or something may refer to a document in a way that
    cannot be followed, the prompt is left as it is."""

    citation: _NumberRegex = r"\[(\d{1,3})\]"
    """Regular expression that finds a citation of a document; the first group is the number. Used by `renumber`."""

    in_front: Literal["follow", "stay"] = "follow"
    """Citations in front of the documents, with `renumber`. `follow`: they get the new numbers, so the text in front
    of the documents varies with their order. `stay`: they only show the form, as in `Cite as [1]`."""

    roles: tuple[Literal["system", "developer", "user", "tool"], ...] = ("system", "developer", "user", "tool")
    """In whose messages documents are searched. Prompts of `/v1/completions` are always searched."""

    @model_validator(mode="after")
    def _is_one_form(self) -> Self:
        forms = [bool(self.opening or self.closing), bool(self.separator), bool(self.regex)]
        if sum(forms) != 1:
            raise ValueError("expected exactly one of `opening` with `closing`, `separator` with `after`, or `regex`")
        if forms[0] and not (self.opening.strip() and self.closing.strip()):
            raise ValueError("`opening` and `closing` belong together: both have to be texts that are not blank")
        if forms[1] and not self.after.strip():
            raise ValueError("`separator` needs `after`, the text in front of the first document")
        if not forms[1] and (self.after or self.before):
            raise ValueError("`after` and `before` only belong to `separator`: remove them, or declare a separator")
        if self.numbers == "renumber" and not (self.number and self.citation):
            raise ValueError("`numbers: renumber` needs `number` and `citation`, which find the numbers")
        return self


class DocumentOrderSettings(BaseModel):
    """Which documents `document-order` sorts. Without an entry the rule does nothing. Declare only documents whose
    order means nothing to the model, such as retrieved passages that are ranked again with every question."""

    model_config = _STRICT

    documents: tuple[DocumentPlaceSettings, ...] = ()
    """How documents are found. The miss reason `documents_reordered` uses the same entries."""
