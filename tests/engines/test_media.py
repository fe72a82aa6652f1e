import pytest

from gateway.core.prompt import MediaItem
from gateway.engines import parse_media


def test_items_of_all_modalities_by_offset():
    features = {
        "mm_hashes": {"image": ["cat", "dog"], "audio": ["song"]},
        "mm_placeholders": {
            "image": [{"offset": 40, "length": 16}, {"offset": 4, "length": 9}],
            "audio": [{"offset": 20, "length": 1}],
        },
        "kwargs_data": None,
    }
    assert parse_media(features) == (MediaItem(4, 9, "dog"), MediaItem(20, 1, "song"), MediaItem(40, 16, "cat"))


@pytest.mark.parametrize(
    "features",
    [
        None,
        {},
        [],
        {"mm_hashes": {}, "mm_placeholders": {}},
        {"mm_hashes": {"image": []}, "mm_placeholders": {"image": []}},
        {"mm_hashes": {"image": ["cat"]}},
        {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"audio": [{"offset": 0, "length": 1}]}},
        {"mm_hashes": {"image": ["cat", "dog"]}, "mm_placeholders": {"image": [{"offset": 0, "length": 1}]}},
        {"mm_hashes": {"image": [None]}, "mm_placeholders": {"image": [{"offset": 0, "length": 1}]}},
        {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"image": [{"offset": -1, "length": 1}]}},
        {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"image": [{"offset": 0, "length": 0}]}},
        {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"image": [{"offset": "0", "length": 1}]}},
        {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"image": [5]}},
        {"mm_hashes": {"image": "cat"}, "mm_placeholders": {"image": "cat"}},
    ],
)
def test_media_are_not_sent(features):
    assert parse_media(features) is None
