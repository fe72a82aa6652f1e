"""The setting ``state``: what is taken, and that no message shows a password."""

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.config.state_settings import RedisAddress, RedisKind, State, read_address


class File(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    state: State = None


def mistake(value):
    with pytest.raises(ValidationError) as invalid:
        File(state=value)
    return str(invalid.value)


def test_memory_is_the_default():
    assert File().state is None
    assert File(state="memory").state is None


@pytest.mark.parametrize(
    "url",
    [
        "redis://redis",
        "redis://redis:6379",
        "redis://redis:6379/0",
        "redis://:s3cret@redis.internal/15",
        "rediss://user:s3cret%40@redis:6380/",
        "redis://[::1]:6379",
    ],
)
def test_urls_of_one_server(url):
    state = File(state=url).state
    assert state.get_secret_value() == url
    assert "s3cret" not in repr(File(state=url))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        (
            "redis+sentinel://:s3cret%40@h1:26380,h2/mymaster/3?sentinel_password=other",
            RedisAddress(
                RedisKind.SENTINEL,
                [("h1", 26380), ("h2", 26379)],
                password="s3cret@",
                database=3,
                service="mymaster",
                sentinel_login={"password": "other"},
            ),
        ),
        ("redis+sentinel://h1/my.master", RedisAddress(RedisKind.SENTINEL, [("h1", 26379)], service="my.master")),
        (
            "rediss+cluster://user:s3cret@h1:7000,[::1]:7001,h3",
            RedisAddress(
                RedisKind.CLUSTER,
                [("h1", 7000), ("::1", 7001), ("h3", 6379)],
                username="user",
                password="s3cret",
                tls=True,
            ),
        ),
        ("redis://h1/2", RedisAddress(RedisKind.SERVER, [("h1", 6379)], database=2)),
    ],
)
def test_the_ways_redis_is_run(url, address):
    assert File(state=url).state is not None
    assert read_address(url) == address
    assert "s3cret" not in repr(read_address(url))
    assert "other" not in repr(read_address(url))


def test_the_certificate_of_a_private_authority(tmp_path):
    file = tmp_path / "ca.pem"
    file.write_text("…")
    assert File(state=f"rediss://redis?ssl_ca_certs={file}").state is not None
    assert "no such file" in mistake(f"rediss://redis?ssl_ca_certs={tmp_path}/other.pem")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://s3cret@a:26379/mymaster", "a password stands behind a colon"),
        ("redis+sentinel://:s3cret@a:26379", "the master's name"),
        ("redis+sentinel://:s3cret@a:26379/mymaster/first", "the master's name"),
        ("redis+sentinel://:s3cret@a,:26379/mymaster", "expected memory, or a URL"),
        ("redis+sentinel://:s3cret@a,b:/mymaster", "expected memory, or a URL"),
        ("redis+sentinel://a/mymaster?password=s3cret", "there is sentinel_username, sentinel_password"),
        ("redis+cluster://:s3cret@a/1", "no databases but the first"),
        ("redis+cluster://a?s3cret=1", "options (?…) are for rediss:// only"),
        ("redis+other://:s3cret@a", "expected memory, or a URL"),
        ("redis+://:s3cret@a", "expected memory, or a URL"),
        ("sentinel://:s3cret@a", "expected memory, or a URL"),
        ("redis://:s3cret@a:6379,b:6379", "several hosts are for redis+sentinel://"),
        ("redis", "expected memory, or a URL"),
        ("Memory", "expected memory, or a URL"),
        ("", "expected memory, or a URL"),
        ("http://:s3cret@redis", "expected memory, or a URL"),
        ("unix:///s3cret", "expected memory, or a URL"),
        ("redis://", "expected memory, or a URL"),
        ("redis://:s3cret@redis:0", "expected memory, or a URL"),
        ("redis://:s3cret@redis:port", "expected memory, or a URL"),
        ("redis://:s3cret@redis:6379 ", "expected memory, or a URL"),
        ("redis://:s3/cret@redis:6379", "are written as %40 for @"),
        ("redis://:s3#cret@redis:6379", "are written as %40 for @"),
        ("redis://:a?s3cret@redis:6379", "are written as %40 for @"),
        ("redis://s3cret@redis:6379", "a password stands behind a colon"),
        ("redis://:s3cret@redis/first", "nothing but a database's number"),
        ("redis://:s3cret@redis/1/2", "nothing but a database's number"),
        ("redis://:s3cret@redis#part", "nothing but a database's number"),
        ("redis://redis?socket_timeout=s3cret", "options (?…) are for rediss:// only"),
        ("rediss://redis?ssl_cert_reqs=s3cret", "an option that is not known; there is ssl_ca_certs"),
        ("rediss://redis?s3cret", "an option that is not known; there is ssl_ca_certs"),
    ],
)
def test_what_is_refused_is_explained_and_not_quoted(url, said):
    message = mistake(url)
    assert said in message
    assert "s3" not in message
    assert "cret" not in message.replace("secret", "")
