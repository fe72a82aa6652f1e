"""What the built-in kinds take, and what they leave."""

import itertools

import pytest

from gateway.canon.pii.kinds.text_view import TextView, digit_count
from gateway.canon.pii.scanner import Hit, Patterns
from gateway.config.personal_data_settings import DEFAULT_KINDS

ALL = Patterns(DEFAULT_KINDS)

TAKEN = {
    "email": """
        anna@example.com
        anna.b.maier+news@mail.example.co.uk
        o'neil_99@sub-domain.example.museum
        ANNA@EXAMPLE.COM
        jürgen.müller@büro.de
        иван.петров@почта.рф
        a@xn--bcher-kva.xn--p1ai
        first%tag@example.org
    """,
    "phone": """
        +49 170 1234567
        +491701234567
        +44 (0)20 7946 0958
        +1 (415) 555-2671
        +1-415-555-2671
        +14155552671
        +33 6 12 34 56 78
        +86 138 1234 5678
        +420 601 123 456
        +354 581 2345
        0049 170 1234567
        0044 20 7946 0958
        (415) 555-2671
        415-555-2671
        415.555.2671
        1-800-555-0199
        030 1234567
        030/12345678
        0171-1234567
        (0161) 496 0000
        020 7946 0958
        07700 900123
        06 12 34 56 78
        06.12.34.56.78
        03-1234-5678
        090-1234-5678
        02 9876 5432
        02 987 6543
        (11) 98765-4321
    """,
    "card": """
        4111111111111111
        4111 1111 1111 1111
        4111-1111-1111-1111
        4222222222222
        5500000000000004
        2221000000000009
        2720999999999996
        378282246310005
        3782 822463 10005
        371449635398431
        30569309025904
        3056 930902 5904
        38520000023237
        6011111111111117
        6011000990139424
        3530111333300000
        6200000000000005
        6759649826438453
        2200000000000004
    """,
    "iban": """
        DE89370400440532013000
        DE89 3704 0044 0532 0130 00
        gb29 nwbk 6016 1331 9268 19
        GB29NWBK60161331926819
        FR1420041010050500013M02606
        NL91ABNA0417164300
        NO9386011117947
        MT84MALT011000012345MTLCAST001S
        LC55HEMM000100010012001200023015
        CH9300762011623852957
        ES91-2100-0418-4502-0005-1332
        SA0380000000608010167519
        BR1800360305000010009795493C1
    """,
    "ipv4": """
        203.0.113.7
        192.168.1.10
        10.0.0.1
        172.31.255.254
        8.8.4.114
        93.184.216.34
    """,
    "national_id": """
        536-90-4399
        12345678Z
        12345678-Z
        12.345.678-Z
        X1234567L
        Y-1234567-X
        RSSMRA85T10A562S
        rssmra85t10a562s
        185057800608491
        1 85 05 78 006 084 91
        86095742719
        86 095 742 719
        AB123456C
        AB 12 34 56 C
        756.9217.0769.85
        85.07.30-033.28
        811228-9874
        131052-308T
        111.444.777-35
        112-233-445 95
        11010519491231002X
        130972 48022
        29029600013
    """,
}

LEFT = """
    v1.2.3.4
    version 10.20.30.40
    build: 10.20.30.40
    1.2.3.4
    1.22.33.44.5
    nginx-1.22.33.44
    Chrome/120.0.10.20
    256.100.100.100
    010.020.030.040
    127.0.0.1 and 0.0.0.0 and 255.255.255.0
    10.0.0.0/8 and 192.168.0.0/16
    see section 10.11.12.13
    2024-01-15
    2024-01-15T10:30:00Z
    2024-01-15T10:30:00+0100
    2024-01-15 10:30:00.123456
    1999-12-31 23:59, 2024-01-15 10 o'clock, 2024-01-15T08
    20240115T103000
    20240115103000
    15.01.2024 10:30
    01-02-2024
    1700000000
    1700000000000
    1700000000000000
    1700000000000000000
    550e8400-e29b-41d4-a716-446655440000
    12345678-1234-1234-1234-123456789012
    abcdefab-0123-4567-8901-abcdefabcdef
    00000000-0378-2822-4631-378282246310
    e59ff97941044f85df5297e1c302d260
    d41d8cd98f00b204e9800998ecf8427e
    a4111111111111111b
    sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    3.14159265358979
    0.4111111111111111
    3.4111111111111111
    $1,234,567.89
    1.234.567,89 EUR
    EUR 1 234 567
    12 345 678 901
    4111111111111112
    4111 1111 1111 1112
    9111111111111111
    0000000000000000
    Order 415-555-2671
    order number: 0171 1234567
    Invoice no. 030 1234567
    #415-555-2671
    ticket 5551234567
    5551234567
    0171123456
    1234567
    +1 555 123
    +15000000 users
    +25000000
    +999 123456789
    UTC+0100
    x+491701234567
    115-555-2671
    415-155-2671
    415-555.2671
    0123 4567 8901 2345
    DE88370400440532013000
    DE8937040044053201300
    XX89370400440532013000
    000-12-3456
    666-12-3456
    912-12-3456
    123-00-4567
    123-45-0000
    078-05-1120
    536904399
    12345678A
    X1234567M
    RSSMRA85T10A562T
    185057800608492
    86095742710
    86 095 742 710
    BG123456C
    AB123456E
    DA123456C
    order AB123456C
    111.444.777-36
    111.111.111-11
    11144477735
    111222333
    44051401359
    500100732259
    112-233-445 96
    756.9217.0769.86
    85.07.30-033.29
    811228-9875
    131052-308U
    110105194912310021
    130972 48023
    29029600014
    @anna
    anna@localhost
    anna@example
    anna at example.com
    @example.com
    <name>@example.com
    {user}@example.com
    logo@2x.png
    package@1.2.3
    git@github.com:team/project.git
    https://bot@host.example.com/x
    postgres://app:pw@db.example.com:5432/x
    @app.route
    640x480x1920
    width 640 480 1920
    The 7 wonders, 12 months, 365 days, 1,000,000 stars.
"""


def lines(text):
    return [line.strip() for line in text.strip().splitlines()]


CASES = [(kind, text) for kind, texts in TAKEN.items() for text in lines(texts)]


@pytest.mark.parametrize(("kind", "text"), CASES)
@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("", ""),
        ("Write to ", ", please."),
        ("(", ")"),
        ('"', '"'),
        ("<", ">."),
        ("客户：", "，谢谢"),
        ("one\n", "\ntwo"),
        ("é ", " é"),
        ("Ask ", " or wait"),
    ],
)
def test_is_found_whole_and_alone(kind, text, before, behind):
    found = ALL.find(before + text + behind)
    assert found == (Hit(kind, len(before), len(text)),)


@pytest.mark.parametrize("text", lines(LEFT))
@pytest.mark.parametrize(("before", "behind"), [("", ""), ("Note ", "."), ("It says ", " and more")])
def test_is_left_alone(text, before, behind):
    assert ALL.find(before + text + behind) == ()


@pytest.mark.parametrize(
    ("before", "text", "kind"),
    [
        ("phone number: ", "1234567", "phone"),
        ("Tel.: ", "12-34-56-78", "phone"),
        ("call us at ", "5551234567", "phone"),
        ("Call me on ", "98765 43210", "phone"),
        ('"phone": "', "4155552671", "phone"),
        ("WhatsApp ", "612 345 678", "phone"),
        ("Mobiltelefon: ", "01711234567", "phone"),
        ("Teléfono ", "912345678", "phone"),
        ("телефон: ", "84951234567", "phone"),
        ("电话：", "13812345678", "phone"),
        ("my social security number is ", "536904399", "national_id"),
        ("SSN ", "536 90 4399", "national_id"),
        ("CPF ", "11144477735", "national_id"),
        ("BSN: ", "111222333", "national_id"),
        ("PESEL ", "44051401359", "national_id"),
        ("ИНН ", "500100732259", "national_id"),
        ("CPR ", "131052-1234", "national_id"),
        ("ИИН ", "540513081385", "national_id"),
        ("ЖСН: ", "540513081385", "national_id"),
        ("iin=", "540513081385", "national_id"),
        ("ИИН клиента по договору: ", "540513081385", "national_id"),
    ],
)
def test_a_word_before_makes_a_number_personal(before, text, kind):
    assert ALL.find(f"{before}{text}, thanks") == (Hit(kind, len(before), len(text)),)
    assert ALL.find(f"Some words: {text}, thanks") == ()


@pytest.mark.parametrize(
    ("text", "as_ascii"),
    [
        ("４１１１１１１１１１１１１１１１", "4111111111111111"),
        ("4111\u00a01111\u00a01111\u00a01111", "4111 1111 1111 1111"),
        ("+49\u202f170\u20111234567", "+49 170-1234567"),
        ("anna＠example.com", "anna@example.com"),
        ("٢٠٣.٠.١١٣.٧", "203.0.113.7"),
    ],
)
def test_other_spellings_of_the_same_characters(text, as_ascii):
    assert ALL.find(f"– {text} –") == ALL.find(f"– {as_ascii} –")
    assert len(ALL.find(text)) == 1


def test_offsets_count_characters_and_not_bytes():
    text = "😀é– anna@example.com – 4111111111111111"
    assert [text[hit.start : hit.start + hit.length] for hit in ALL.find(text)] == [
        "anna@example.com",
        "4111111111111111",
    ]


def test_a_security_code_behind_a_card_is_no_part_of_it():
    assert ALL.find("4111 1111 1111 1111 123") == (Hit("card", 0, 19),)


@pytest.mark.parametrize("unit", ["1234567\n", "12345 word ", "4111111111111111 ", "x12345" + " " * 12])
def test_no_character_is_looked_at_twice(unit):
    zones = TextView(unit * 50).zones
    assert zones
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(zones))


def test_several_in_one_line():
    text = "4111111111111111,5500000000000004;anna@example.com/bob@example.com 10.0.0.1 +49 170 1234567"
    assert [hit.kind for hit in ALL.find(text)] == ["card", "card", "email", "email", "ipv4", "phone"]
    for text in ("+49 170 1234567 10.0.0.1", "10.0.0.1 +49 170 1234567 4111 1111 1111 1111 anna@example.com"):
        kinds = ["phone", "ipv4"] if text.startswith("+") else ["ipv4", "phone", "card", "email"]
        assert [hit.kind for hit in ALL.find(text)] == kinds


@pytest.mark.parametrize("kind", sorted(DEFAULT_KINDS))
def test_only_the_kinds_asked_for(kind):
    everything = "\n".join(text for _, text in CASES)
    only = {hit.kind for hit in Patterns({kind}).find(everything)}
    without = {hit.kind for hit in Patterns(set(DEFAULT_KINDS) - {kind}).find(everything)}
    assert only == {kind}
    assert without == set(DEFAULT_KINDS) - {kind}


def test_what_overlaps_is_one_finding_of_the_more_specific_kind():
    assert ALL.find("phone 4111111111111") == (Hit("phone", 6, 13),)  # no card by its check digit
    assert ALL.find("phone 4222222222222") == (Hit("card", 6, 13),)
    assert ALL.find("tel 185057800608491") == (Hit("national_id", 4, 15),)


def test_prose_and_code_have_nothing():
    text = """
    You are a helpful assistant. Today is Monday, 15 January 2024, 10:30. Answer within 200 words.
    Answers have 1,500 characters.
    Prices: 12.50 EUR, $1,299.00, 3 x 4.99. Rooms 101-120. ISO 27001:2022, RFC 2616, Python 3.11.7, CUDA 12.4.1.
    def f(x): return x[0:16] * 1e-12 + 0x7fffffff - 4294967295  # see https://example.com/item/1234567890?id=42
    Postal codes: 10115 Berlin, SW1A 1AA, 94105-1234. Part no. 123-456-7890. Coordinates 52.520008, 13.404954.
    Opening hours 08:00-18:00, 9-5. Flight LH 1234, 2024-W03-1, batch 20240115-001.
    Commit 9fceb02d0ae598e95dc970b74767f19372d61af8
    """
    assert ALL.find(text) == ()


@pytest.mark.parametrize(("text", "found"), [("a 1 2 3 4 b", False), ("a 1 2 3 4 5 b", True), ("a ١ ٢ ３ 4 5 b", True)])
def test_numbers_are_looked_for_in_texts_with_enough_digits(text, found):
    assert bool(TextView(text).zones) == found


@pytest.mark.parametrize(("text", "digits"), [("", 0), ("0a9", 2), ("²½é١😀\ud800 12", 2)])
def test_ascii_digits_are_counted(text, digits):
    assert digit_count(text) == digits
