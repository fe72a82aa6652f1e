"""Made-up text in the words of the built-in tokenizer: about one token a word, as with English and a real tokenizer."""

from random import Random

_NOUN_LIST = """account address agreement appointment box carrier category check customer delivery department device
document email exchange form guarantee invoice item label letter limit message number offer order package page
payment period plan price product receipt record refund request return room schedule service shipment sign station
store subscription supplier ticket transfer update voucher warehouse week"""
_VERB_LIST = """accept answer approve book cancel change check close confirm copy cover explain extend find forward
handle include keep mark move open pack pay prepare print receive record remove repair replace request review send
sign store track update use verify write"""
_ADJECTIVE_LIST = """available complete correct damaged different digital early empty expensive final free full late
local missing new old open original partial personal private public quick recent regular safe second separate small
special standard useful valid wrong"""
_NOUNS, _VERBS, _ADJECTIVES = _NOUN_LIST.split(), _VERB_LIST.split(), _ADJECTIVE_LIST.split()
_PATTERNS = (
    "When the {noun} is {adj}, {verb} the {other} before the next {third} and tell the customer why.",
    "Every {adj} {noun} with more than {number} items has to be checked again by the {other} team.",
    "Please {verb} the {noun} first, then the {other}, and keep the {third} for at least {number} days.",
    "There is no {noun} without a {adj} {other}; it must never {verb} the {third} of somebody else.",
    "If the {noun} cannot {verb} the {other}, it is {adj} and counts as a {third} of type {number}.",
    "According to section {number}, the {adj} {noun} may {verb} one {other} for each {third}.",
)


def sentence(rng: Random) -> str:
    """One sentence, about 20 tokens long. Two are hardly ever equal."""
    noun, other, third = rng.sample(_NOUNS, 3)
    return rng.choice(_PATTERNS).format(
        noun=noun,
        other=other,
        third=third,
        verb=rng.choice(_VERBS),
        adj=rng.choice(_ADJECTIVES),
        number=rng.randrange(2, 1000),
    )


def prose(rng: Random, sentences: int) -> str:
    """So many sentences in one paragraph."""
    return " ".join(sentence(rng) for _ in range(sentences))
