"""A change of the language of instructions, and what only looks like it."""

from pathlib import Path

import pytest
import yaml
from differing import chat, code
from differing import difference as compared

from gateway.canon.lexicon import by_part
from gateway.core.reasons import Reason
from gateway.explain.diff.language import language_difference, language_of
from gateway.explain.prompt_text import Message, PromptPair, PromptText

SAMPLES = yaml.safe_load((Path(__file__).parent / "instructions.yaml").read_text("utf-8"))
SHARED = "Watering cans hold five litres. Roses are cut back in autumn, and lavender wants sun and dry soil."


def pair(before, after):
    """Two prompts, each with these system messages and one question."""
    texts = [
        PromptText((*(Message("system", text) for text in each), Message("user", "Hello"))) for each in (before, after)
    ]
    return PromptPair(*texts, "web", "web", same_conversation=True, replies=())


def difference(before, after):
    return language_difference(pair([before], [after]), 0)


@pytest.mark.parametrize("code", SAMPLES)
def test_instructions_in_every_language_are_recognized_against_others(code):
    assert language_of(SAMPLES[code]) == code
    other = "fr" if code == "en" else "en"
    found = difference(SAMPLES[other] + "\n" + SHARED, SAMPLES[code] + "\n" + SHARED)
    assert (found.reason, found.detail, found.path) == (
        Reason.LANGUAGE_CHANGED,
        "instructions",
        "messages[0].content",
    )
    assert found.said.endswith(f"suggested scope: {code}")


def test_each_language_has_a_sample_and_beginnings():
    languages = {*by_part("languages", "words"), *by_part("languages", "scripts")}
    assert set(SAMPLES) == languages == set(by_part("languages", "beginnings"))


@pytest.mark.parametrize(
    ("code", "words"), [(code, each) for code, listed in by_part("languages", "beginnings").items() for each in listed]
)
def test_every_beginning_of_instructions_is_recognized(code, words):
    body = " ".join(by_part("languages", "words").get(code, [SAMPLES[code].lower()]))
    for each in sorted(by_part("languages", "beginnings")[code], key=len, reverse=True):
        body = body.replace(each, "")
    other = SAMPLES["fr" if code == "en" else "en"]
    assert difference(other, body) is None
    assert difference(other, f"{words} {body}").said.endswith(f": {code}")


def test_several_leading_messages_are_read_together():
    found = language_difference(pair([SAMPLES["en"], SHARED], [SAMPLES["de"], SHARED]), 0)
    assert found.reason is Reason.LANGUAGE_CHANGED


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # One of both is too short, or has no language.
        ("Be brief.", SAMPLES["de"]),
        (SAMPLES["en"], "SKU 4711 4712 4713 4714 ABC DEF GHI JKL MNO PQR STU VWX"),
        # The same language.
        (SAMPLES["en"], "You are a pirate who sails on the seven seas, and you answer as one of them, with a song."),
        # Instructions that stay stand in front.
        (SAMPLES["en"] + "\n" + SAMPLES["fr"], SAMPLES["en"] + "\n" + SAMPLES["de"]),
        (f'He said: "{SAMPLES["en"]}"', f'He said: "{SAMPLES["de"]}"'),
        (f"He said: “{SAMPLES['en']}”", f"He said: “{SAMPLES['de']}”"),
        (f"```\n{SAMPLES['en']}\n```", f"```\n{SAMPLES['de']}\n```"),
        (f"> {SAMPLES['en']}", f"> {SAMPLES['de']}"),
        # No instructions, but a document or a user's words.
        (
            SHARED,
            "Die Gießkannen fassen fünf Liter, und die Rosen werden im Herbst auf eine Hand gekürzt, wenn es friert.",
        ),
        # Most of it is a quotation.
        (SAMPLES["en"], f'You are a poet. Here is what you wrote: "{SAMPLES["de"]}"'),
    ],
)
def test_what_is_no_change_of_language(before, after):
    assert difference(before, after) is None


MAILS = (
    "Dear Ms Lang. The roses that you sent to us are not the ones of the list. Answer this by Monday, or we wait.",
    "Liebe Frau Lang. Die Rosen, die Sie uns gesandt haben, sind nicht die von der Liste. Antworten Sie bis Montag.",
)


@pytest.mark.parametrize(
    "around",
    [
        "Translate.\n\n<email>\n{}\n</email>",
        "Translate. <email>{}</email>",
        'Translate.\n<document lang="de">\n<title>Roses</title>\n{}\n</document>\nBe brief.',
        "Memory of the user:\n- {}",
        "# Documents\n\n{}",
        "Document: {}",
    ],
)
def test_data_in_another_language_is_no_change_of_instructions(around):
    assert difference(*(around.format(each) for each in MAILS)) is None
    rules = [around.format("Roses.") + "\n\n# Rules\n\n" + SAMPLES[code] for code in ("en", "de")]
    assert difference(*rules).reason is Reason.LANGUAGE_CHANGED


def test_instructions_in_tags_of_their_own():
    for around in ("<instructions>\n{}\n</instructions>", "<role>{}</role>", "Rules:\n{}", "# Blumenhaus\n\n- **{}**"):
        found = difference(*(around.format(SAMPLES[code]) for code in ("en", "de")))
        assert found.reason is Reason.LANGUAGE_CHANGED


def test_a_request_in_the_middle_of_a_sentence_is_no_instruction():
    letters = (
        "The roses that you sent to us are not the ones of the list, so please answer this letter before Monday.",
        "Die Rosen von der Liste sind nicht die, die wir bestellt haben, und wir bitten, antworten Sie bis zum Montag.",
    )
    assert [language_of(each) for each in letters] == ["en", "de"]
    assert difference(*letters) is None
    assert difference(*(each.replace(", so please", ". So:").replace(", antworten", ". Antworten") for each in letters))


@pytest.mark.parametrize(
    ("value", "other", "reason"),
    [
        ("Now: 2026-11-22 10:02.", "Now: 2026-11-22 10:05.", "dynamic_time"),
        ("10:02 UTC", "10:05 UTC", "dynamic_time"),
        (
            "Request 71b29052-7035-4c7b-9d2b-0f3f6f1f8c11",
            "Request 9f0c3d4e-1b2a-4c5d-8e9f-a0b1c2d3e4f5",
            "dynamic_id",
        ),
    ],
)
def test_a_changing_value_in_front_of_the_instructions_comes_first(value, other, reason):
    texts = [f"Blumenhaus. {value}\n{SAMPLES[code]}" for value, code in ((value, "en"), (other, "de"))]
    before, after = (chat(("system", each), ("user", "Hello")) for each in texts)
    assert code(compared(before, after))[0] == reason
    before, after = (chat(("system", each.replace(other, value)), ("user", "Hello")) for each in texts)
    assert code(compared(before, after))[0] == "language_changed"


KAZAKH = (
    "Сіз Blumenhaus дүкенінің көмекшісісіз. Тұтынушының сұрақтарына сыпайы жауап беріңіз. Жеткізу күнін айтпаңыз.",
    "Сенің рөлің: гүлзар кеңесшісі. Сұрақтарға қазақ тілінде жауап бер.",
    "Сізге қойылған сұрақтарға көмектесіңіз, өңдеуге рұқсат етілген құжаттарды ғана қолданыңыз.",
)


@pytest.mark.parametrize("kazakh", KAZAKH)
def test_kazakh_is_known_by_its_letters(kazakh):
    assert language_of(kazakh) == "kk"
    for other in ("ru", "uk", "en"):
        assert difference(SAMPLES[other], kazakh).said.endswith(": kk")
        assert difference(kazakh, SAMPLES[other]).said.endswith(f": {other}")


@pytest.mark.parametrize(
    ("other", "language"),
    [
        # Tatar, Kyrgyz, Mongolian, Uzbek, Tajik.
        ("Син чәчәкләр кибетенең ярдәмчесе. Сорауларга кыска итеп җавап бир, һәм беркайчан да көнне әйтмә.", ""),
        ("Сен гүлдөр дүкөнүнүн жардамчысысың. Суроолорго беш сүйлөм менен жооп бер, эч качан күндү убада кылба.", ""),
        ("Та цэцгийн дэлгүүрийн туслах юм. Асуултад таван өгүүлбэрээр хариулж, хэзээ ч өдрийг бүү амла.", ""),
        (
            "Сиз гуллар дўкони ёрдамчисисиз. Саволларга қисқа жавоб беринг, ҳеч қачон кунни ваъда қилманг.",
            "",
        ),
        (
            "Ту ёрдамчии мағозаи гул ҳастӣ. Ба саволҳо кӯтоҳ ҷавоб деҳ ва ҳеҷ гоҳ рӯзро ваъда надеҳ, қоида ин аст.",
            "",
        ),
        # A name does not make a text Kazakh.
        (f"{SAMPLES['ru']} Директор: Құрманғазы.", "ru"),
    ],
)
def test_neighbours_of_kazakh_are_other_languages(other, language):
    assert language_of(other) == language


def test_a_language_that_is_not_certain_is_not_named():
    assert language_of("de la en un que a o se") == ""
    assert language_of(f"{SAMPLES['es']} {SAMPLES['pt']}") == ""
    assert language_of("") == ""


def test_the_time_is_bounded_for_any_text():
    for piece in ('"', "“a", "```", "> ", "ß", "你", "a ", "\n>"):
        language_difference(pair([piece * 200_000], ["x" + piece * 200_000]), 0)
