"""What is found behind its label only: most national ids, names, addresses, numbers of contracts and orders."""

import pytest

from gateway.canon.pii.kinds.national_checks import kazakhstan
from gateway.canon.pii.scanner import Hit, Patterns
from gateway.config.personal_data_settings import BUILT_IN_KINDS, DEFAULT_KINDS

ALL = Patterns(BUILT_IN_KINDS)


def found(text):
    return [(hit.kind, text[hit.start : hit.start + hit.length]) for hit in ALL.find(text)]


def cases(text):
    """Lines of a label and a value, with the value in braces."""
    for line in text.strip().splitlines():
        before, _, rest = line.strip().partition("⟦")
        value, _, behind = rest.partition("⟧")
        yield before, value, behind


IDS = """
    CUIL: ⟦23-33735695-8⟧
    Sozialversicherungsnummer ⟦7423 603905⟧
    tax file number ⟦441 413 586⟧
    ЕГН ⟦1421192819⟧
    SIN: ⟦206 835 191⟧
    social insurance number is ⟦206835191⟧
    cédula: ⟦01714668942⟧
    RUT ⟦1.669.423-1⟧
    rodné číslo ⟦047707/099⟧
    isikukood: ⟦57312137179⟧
    NHS number: ⟦040 618 4984⟧
    AMKA ⟦07010310667⟧
    OIB: ⟦67557365714⟧
    PPS number ⟦7248857K⟧
    teudat zehut ⟦18732206⟧
    Aadhaar no. ⟦3000 4739 2704⟧
    kennitala ⟦0702063660⟧
    JMBG: ⟦0403788720111⟧
    주민등록번호: ⟦250528-2764034⟧
    asmens kodas ⟦74909240562⟧
    personas kods: ⟦161175-19997⟧
    {"curp": "⟦CCHM850615HDFRRN86⟧"}
    NRIC: ⟦710225-78-0313⟧
    IRD number ⟦47-989-795⟧
    CNIC ⟦53163-1049284-1⟧
    NIF: ⟦839745346⟧
    CNP ⟦6470505259075⟧
    เลขประจำตัวประชาชน ⟦6892099824527⟧
    TCKN: ⟦57664218166⟧
    РНОКПП ⟦4158564649⟧
    ITIN ⟦909-74-0556⟧
    SA ID number: ⟦2012227266064⟧
    ИИН: ⟦540513 081385⟧
    ЖСН (ИИН) № ⟦540513081385⟧
    <iin>⟦540513081385⟧</iin>
    user_iin = ⟦540513081385⟧
"""


@pytest.mark.parametrize(("before", "value", "behind"), list(cases(IDS)))
def test_a_national_id_is_found_behind_its_name_with_a_right_check_digit(before, value, behind):
    text = f"Note. {before}{value}{behind}, thanks"
    assert found(text) == [("national_id", value)]
    assert Patterns(DEFAULT_KINDS).find(text) == ALL.find(text)


@pytest.mark.parametrize(("before", "value", "behind"), list(cases(IDS)))
def test_the_same_number_without_its_name_is_left(before, value, behind):
    assert ("national_id", value) not in found(f"Some units: {value}{behind}, thanks")


_WITHOUT_CHECK_DIGIT = {"250528-2764034", "909-74-0556", "047707/099", "710225-78-0313", "53163-1049284-1"}


@pytest.mark.parametrize(
    ("before", "value", "behind"), [each for each in cases(IDS) if each[1] not in _WITHOUT_CHECK_DIGIT]
)
def test_another_last_character_is_left(before, value, behind):
    other = "ABCDEFGHIJ"["ABCDEFGHIJ".find(value[-1]) - 1] if value[-1].isalpha() else str((int(value[-1]) + 1) % 10)
    assert not any(kind == "national_id" for kind, _ in found(f"{before}{value[:-1]}{other}{behind}"))


@pytest.mark.parametrize(
    "text",
    [
        "БИН 540513081385",
        "skiing 540513081385",
        "ИИН: 541313081385",
        "ИИН: 5405130813850",
        "ИИН: 2026-11-23 10:00",
        "Kasino 206835191",
        "sin 3.14159265",
        "asin(206835190)",
        "the conifer 839745346",
        "NHS: 40618 requests",
        "he said 2012227266064",
    ],
)
def test_what_only_looks_like_a_labelled_id_is_left(text):
    assert found(text) == []


def test_the_second_weights_of_an_iin_count_if_the_first_give_ten():
    heads = [f"850101{number:05}" for number in range(30000, 30400)]
    of_first = [sum(int(d) * w for d, w in zip(head, range(1, 12), strict=True)) % 11 for head in heads]
    of_second = [sum(int(d) * w for d, w in zip(head, (*range(3, 12), 1, 2), strict=True)) % 11 for head in heads]
    assert {10} < set(of_first)
    for head, first, second in zip(heads, of_first, of_second, strict=True):
        right = {str(first)} if first < 10 else {str(second)} if second < 10 else set()
        assert {digit for digit in "0123456789" if kazakhstan(head + digit)} == right
    assert any(first == second == 10 for first, second in zip(of_first, of_second, strict=True))


NAMES = """
    Full name: ⟦Anna Maier⟧
    Name: ⟦Anna Maier⟧. She likes tea.
    **Customer:** ⟦Anna van der Berg⟧, Age: 30
    - Patient = ⟦Müller⟧
    Last name: ⟦O'Neil-Smith⟧
    Name: ⟦Maier, Anna⟧
    Contact person: ⟦Dr. A. Maier⟧
    {"customer_name": "⟦Anna Maier⟧", "age": 3}
    {"fullName":"⟦anna maier⟧"}
    <name>⟦Anna Maier⟧</name> Bob Smith
    ФИО: ⟦Иванов Иван Иванович⟧
    Клиент: ⟦Алия Серикова⟧
    Аты-жөні: ⟦Нұрлан Әбілқасымұлы⟧
    姓名：⟦王小明⟧
    이름: ⟦김철수⟧
    Vorname: ⟦Jürgen⟧
"""
ADDRESSES = """
    Address: ⟦12 High Street, London⟧. Call before.
    Home address: ⟦5 Main St. London 10115⟧
    - **Anschrift:** ⟦Hauptstraße 5, 10115 Berlin⟧
    Адрес: ⟦г. Алматы, пр. Абая 10, кв. 5⟧
    Мекенжайы: ⟦Алматы қ., Абай д. 10⟧
    {"delivery_address": "⟦Abay Ave. 10, Almaty⟧", "floor": 3}
    <address>⟦12 High Street⟧</address>
    地址：⟦北京市朝阳区1号⟧
"""
CONTRACTS = """
    Contract no. ⟦AB-2024/117⟧
    contract number: ⟦12345⟧
    договор № ⟦17-04/2024⟧
    {"contract_id": "⟦C-10023⟧"}
    policy number ⟦99812⟧
    Vertragsnummer: ⟦V123456⟧
"""
ORDERS = """
    Order #⟦12345⟧, thanks
    order number ⟦12345⟧
    заказ № ⟦12345⟧
    Номер заказа: ⟦А-12345⟧
    Bestellnummer: ⟦AB12345⟧
    {"orderId": "⟦A-10023⟧"}
    commande n° ⟦123456⟧
    тапсырыс нөмірі ⟦55512⟧
"""
TEXTS = [
    (kind, *case)
    for kind, texts in {
        "person_name": NAMES,
        "postal_address": ADDRESSES,
        "contract_number": CONTRACTS,
        "order_number": ORDERS,
    }.items()
    for case in cases(texts)
]


@pytest.mark.parametrize(("kind", "before", "value", "behind"), TEXTS)
@pytest.mark.parametrize("above", ["", "You help with parcels.\n"])
def test_labelled_text_is_found_where_its_kind_is_asked_for(kind, before, value, behind, above):
    assert found(above + before + value + behind) == [(kind, value)]
    assert Patterns(DEFAULT_KINDS).find(above + before + value + behind) == ()
    assert Patterns({kind}).find(above + before + value + behind) == (Hit(kind, len(above + before), len(value)),)


@pytest.mark.parametrize(
    "text",
    [
        "Anna Maier asked for a refund.",
        "My name is important to me.",
        "file name: Foo Bar",
        "Product name: Foo Bar",
        "name: Widget",
        "Name: The name of the tool",
        "User: what is this",
        "Patient: unknown",
        "name: get_weather",
        '{"name": "get_weather", "type": "string"}',
        "Surname: required",
        "</name> Anna Maier",
        "filename: Anna Maier",
        "the address: see below",
        "Address: see below",
        "Address: none",
        "Email address: somewhere 12",
        "IP address: fe80 1",
        "MAC address: aa 11",
        "Address: https://example.com/1",
        "Address: 0x7fff5694 in memory",
        "He lives at home: 12 High Street.",
        "order 12345",
        "In order 2024 was good",
        "Order: 12.50 EUR",
        "order: 2024-01-15",
        "Order no. 12",
        "in that order: 100 first",
        "contract 2024/25",
        "Contract: 15.01.2024",
        "the border: 12345",
        "disorder #12345",
        "sort order = 1",
        "Policy: 2024",
        "social contract theory, 1762",
    ],
)
def test_what_only_looks_labelled_is_left(text):
    expected = [("order_number", "100")] if text == "in that order: 100 first" else []
    assert found(text) == expected


def test_an_address_with_other_kinds_in_it_is_one_finding():
    assert found("Address: 10115 Berlin, +49 30 1234567") == [("postal_address", "10115 Berlin, +49 30 1234567")]


def test_a_label_at_the_beginning_of_a_window_is_not_taken_for_the_beginning_of_a_line():
    assert found("x" * 60 + " file name: Foo Bar") == []
    assert found("y" * 44 + "name: Foo Bar") == []


@pytest.mark.parametrize("label", ["Name: ", "Address: "])
def test_very_many_labels_hide_nothing_behind_them(label):
    text = label * 3000 + "\nFull name: Anna Maier\nAddress: Abay Ave. 10, Almaty"
    assert found(text) == [("person_name", "Anna Maier"), ("postal_address", "Abay Ave. 10, Almaty")]
