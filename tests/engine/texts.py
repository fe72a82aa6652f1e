"""Text for prompts: ordinary sentences, different for every topic, of about the length asked for."""

_SENTENCES = (
    "Every {0} request is written down with its date, its number and the name of who takes care of it.",
    "Before a {0} case is closed, somebody who did not work on it reads it once more from the beginning.",
    "If two rules about {0} contradict each other, the newer one counts, unless the older one is about safety.",
    "Questions about {0} are answered in short sentences, without words that only a specialist understands.",
    "Nothing about {0} is promised that the {1} team has not agreed to in writing.",
    "When the {1} system is down, {0} work goes on by hand and is entered later the same day.",
    "A customer who asks about {0} twice in one week is called back by a person.",
    "Prices for {0} are looked up in the {1} list, never remembered.",
    "Whoever changes a {0} document keeps the old one for {2} days.",
    "The {1} office opens at nine, and {0} matters are looked at first.",
)

_TOPICS = (
    ("billing", "finance"),
    ("delivery", "warehouse"),
    ("warranty", "repair"),
    ("travel", "booking"),
    ("garden", "nursery"),
    ("bicycle", "workshop"),
    ("library", "lending"),
    ("school", "teaching"),
    ("harbour", "customs"),
    ("kitchen", "catering"),
)


def prose(topic: int, sentences: int) -> str:
    """That many sentences, about 20 tokens each; no two topics begin alike."""
    first, second = _TOPICS[topic % len(_TOPICS)]
    written = [
        _SENTENCES[(topic + number) % len(_SENTENCES)].format(first, second, 10 + 7 * topic + number)
        for number in range(sentences)
    ]
    return f"House rules number {topic} for {first}. " + " ".join(written)
