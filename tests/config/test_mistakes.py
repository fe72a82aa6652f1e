"""Every kind of mistake in a value or key, with its line."""

import pytest

MODELS = 'models: [{id: m, replicas: ["http://localhost:8000"]}]\n'


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        # wrong types
        ("server: {port: true}", "server.port: expected a whole number, got true"),
        ("server: {port: http}", "server.port: expected a whole number, got 'http'"),
        ('server: {port: "8080"}', "server.port: expected a whole number, got '8080'"),
        ("server: {port: 80.5}", "server.port: expected a whole number, got 80.5"),
        ("server: {port: 80.0}", "server.port: expected a whole number, got 80.0"),
        ("server: {port: }", "server.port: expected a whole number, got nothing"),
        ("server: {port: [8080]}", "server.port: expected a whole number, got a list"),
        ("server: 8080", "server: expected a mapping (`key: value`), got 8080"),
        ("server: [8080]", "server: expected a mapping (`key: value`), got a list"),
        ("relay: {connect_timeout_seconds: 5s}", "relay.connect_timeout_seconds: expected a number, got '5s'"),
        ("relay: {connect_timeout_seconds: .inf}", "relay.connect_timeout_seconds: expected a finite number, got inf"),
        ("log: {requests: 1}", "log.requests: expected true or false, got 1"),
        ("log: {requests: maybe}", "log.requests: expected true or false, got 'maybe'"),
        ("server: {host: 1}", "server.host: expected text, got 1 (put it in quotes)"),
        # out of range
        ("server: {port: 70000}", "server.port: expected at most 65535, got 70000"),
        ("server: {port: -1}", "server.port: expected at least 0, got -1"),
        ("encode: {threads: 0}", "encode.threads: expected at least 1, got 0"),
        ("index: {speculative_ttl_seconds: 0}", "index.speculative_ttl_seconds: expected more than 0, got 0"),
        ("placement: {tie_margin: 2}", "placement.tie_margin: expected at most 1, got 2"),
        ("relay: {unhealthy_after: 0}", "relay.unhealthy_after: expected at least 1, got 0"),
        # origins
        ("server: {cors_origins: https://a.example}", "server.cors_origins: expected a list"),
        (
            "server: {cors_origins: [a.example]}",
            "server.cors_origins: 'a.example' is no origin, expected scheme and host",
        ),
        ("server: {cors_origins: ['']}", "server.cors_origins: '' is no origin"),
        ("server: {cors_origins: [null]}", "server.cors_origins[0]: expected text"),
        ("server: {cors_origins: ['null']}", "server.cors_origins: 'null' is no origin"),
        ("server: {cors_origins: ['https://']}", "server.cors_origins: 'https://' is no origin"),
        (
            "server: {cors_origins: ['https://a.example/']}",
            "server.cors_origins: 'https://a.example/' has a path, which an origin has not (write https://a.example)",
        ),
        (
            "server: {cors_origins: ['https://a.example:8443/x?y']}",
            "server.cors_origins: 'https://a.example:8443/x?y' has a path, which an origin has not (write https://a.example:8443)",
        ),
        (
            "server: {cors_origins: ['https://u:p@a.example']}",
            "server.cors_origins: 'https://u:p@a.example' is no origin, expected scheme and host",
        ),
        (
            "server: {cors_origins: ['https://A.example:443']}",
            "server.cors_origins: browsers send 'https://A.example:443' as https://a.example",
        ),
        (
            "server: {cors_origins: ['https://*.example']}",
            "server.cors_origins: 'https://*.example' is a pattern, expected exact origins",
        ),
        (
            "server: {cors_origins: ['*', 'https://a.example']}",
            "server.cors_origins: `*` stands for every origin (write it alone",
        ),
        (
            "server: {cors_origins: ['https://bücher.example']}",
            "server.cors_origins: 'https://bücher.example' is no origin, expected scheme and host",
        ),
        # choices
        ("log: {level: off}", "log.level: expected debug, info, warning or error, got 'off'"),
        (
            "placement: {policy: least-load}",
            "placement.policy: expected expected_ttft, round_robin, least_load or session, got 'least-load' "
            "(did you mean least_load?)",
        ),
        # unknown keys
        ("relais: {}", "relais: unknown key (did you mean relay?)"),
        ("server: {Port: 1}", "server.Port: unknown key (did you mean port?)"),
        ("server: {max-body-bytes: 1}", "server.max-body-bytes: unknown key (did you mean max_body_bytes?)"),
        ("policy: session", "policy: unknown key here (it belongs under placement)"),
        ("api_key: sk-1", "api_key: unknown key here (it belongs under models[].discover.template or models"),
        ("log: {zzz: 1}", "log.zzz: unknown key, expected one of format, level, requests"),
        (
            "quotas: []",
            "quotas: unknown key, expected one of server, log, models, admission, tenants, spaces, personal_data, "
            "canon, prompts, prompts_file, explain, history, responses, cost, experiment, audit, tracing, warm, "
            "encode, index, ingest, placement, queue, "
            "relay, state",
        ),
        # canonicalization
        ("canon: {rules: {whitespce: apply}}", "canon.rules: expected as a rule one of unicode, "),
        ("canon: {rules: {whitespace: on}}", "canon.rules: expected as a mode for whitespace one of off, observe"),
        ("canon: {routes: {/v1/embeddings: {}}}", "canon.routes: expected as a path /v1/chat/completions or"),
        ("canon: {dynamic_suffix: {pointer: here}}", "canon.dynamic_suffix.pointer: expected one line with {number}"),
        (
            "canon: {dynamic_suffix: {pointer: '{number}'}}",
            "canon.dynamic_suffix.pointer: expected one line with {number} and",
        ),
        ("canon: {dynamic_suffix: {opening: ''}}", "canon.dynamic_suffix.opening: expected one line that is not empty"),
        ("canon: {patterns: [{name: a, regex: '('}]}", "canon.patterns[0].regex: not a regular expression"),
        ("canon: {patterns: [{name: a, regex: 'x*'}]}", "canon.patterns[0].regex: it matches the empty text"),
        ("canon: {patterns: [{name: A, regex: x}]}", "canon.patterns[0].name: expected up to 40 lower-case letters"),
        ("canon: {dynamic-suffix: apply}", "canon.dynamic-suffix: unknown key (did you mean dynamic_suffix?)"),
        ("warm: {again: {tokens_per_hour: 9, hottest: 0}}", "warm: again has nothing to send (name a file"),
        (
            "warm: {again: {when: [resets]}}",
            "warm.again.when[0]: expected reset, expiry, restart or idle, got 'resets'",
        ),
        ("warm: {again: {every_seconds: 5}}", "warm.again.every_seconds: expected at least 60, got 5"),
        # a tenant's own time where all share one space
        (
            f"tenants: [{{id: a, keys: ['sha256:{'0' * 64}'], idle_ttl_seconds: 60}}]\nspaces: {{isolation: none}}",
            "tenants[0].idle_ttl_seconds: a tenant has no spaces of its own, because spaces.isolation is none",
        ),
        # shared state
        ("state: redis+sentinel://h:1", "state: behind the sentinels comes the master's name"),
        # addresses and ports
        ("server: {port: 9000, admin_port: 9000}", "server.admin_port: the same as server.port"),
        ("server: {port: 8081}", "server.admin_port: the same as server.port"),
        ("server: {host: 'http://0.0.0.0'}", "server.host: expected an IP address or a host name"),
        ("server: {host: '0.0.0.0:80'}", "server.host: expected an IP address or a host name"),
        ("server: {admin_host: 0.0.0.0}", "server.admin_token: required, because admin_host"),
        ("server: {admin_host: '::'}", "server.admin_token: required, because admin_host"),
        ("server: {admin_host: gw.internal}", "server.admin_token: required, because admin_host"),
        # tags and numbers that no one can use
        ("server: {port: !!python/name:os.system 1}", "server.port: a tag that is not known"),
        ("server: {port: !!int x}", "server.port: a tag that is not known or does not fit"),
        (f"server: {{port: {'9' * 5000}}}", "server.port: not a usable number"),
        ("server: &s {host: *s}", "server.host: an alias that refers to itself"),
        ("server: {[a]: 1}", "server: a key must be plain text"),
        # canonicalization, several entries together
        (
            "canon: {dynamic_suffix: {slots: [{name: a, regex: 'A: (.+)', models: [x]}]}}",
            "canon.dynamic_suffix.slots[0].models[0]: there is no model 'x' (there are: m)",
        ),
        (
            "canon: {dynamic_suffix: {slots: [{name: a, regex: 'A: (.+)'}, {name: a, regex: 'B: (.+)'}]}}",
            "canon.dynamic_suffix.slots[1].name: canon.dynamic_suffix.slots[0] has this name already",
        ),
        (
            "canon: {document_order: {documents: [{name: a}]}}",
            "canon.document_order.documents[0]: expected exactly one of `opening` with `closing`, `separator` with",
        ),
        (
            "canon: {document_order: {documents: [{name: a, opening: <d>, regex: x}]}}",
            "canon.document_order.documents[0]: expected exactly one of `opening` with `closing`",
        ),
        (
            "canon: {document_order: {documents: [{name: a, opening: <d>}]}}",
            "canon.document_order.documents[0]: `opening` and `closing` belong together",
        ),
        (
            "canon: {document_order: {documents: [{name: a, separator: '---'}]}}",
            "canon.document_order.documents[0]: `separator` needs `after`, the text in front of the first document",
        ),
        (
            "canon: {document_order: {documents: [{name: a, regex: x, before: y}]}}",
            "canon.document_order.documents[0]: `after` and `before` only belong to `separator`",
        ),
        (
            "canon: {document_order: {documents: [{name: a, regex: x, numbers: renumber}]}}",
            "canon.document_order.documents[0]: `numbers: renumber` needs `number` and `citation`",
        ),
        (
            "canon: {document_order: {documents: [{name: a, regex: x, id: 'a*'}]}}",
            "canon.document_order.documents[0].id: matches the empty text",
        ),
        (
            "canon: {document_order: {documents: [{name: a, regex: x, number: '^[0-9]+'}]}}",
            "canon.document_order.documents[0].number: it has no group: put the number into parentheses",
        ),
        (
            "canon: {document_order: {documents: [{name: A, regex: x}]}}",
            "canon.document_order.documents[0].name: expected up to 40 lower-case letters",
        ),
        (
            "canon: {document_order: {documents: [{name: a, regex: x}, {name: a, regex: y}]}}",
            "canon.document_order.documents[1].name: canon.document_order.documents[0] has this name already",
        ),
        (
            "canon: {patterns: [{name: a, regex: '^A: '}, {name: a, regex: '^B: '}]}",
            "canon.patterns[1].name: canon.patterns[0] has this name already",
        ),
        (
            "canon: {dynamic_suffix: {opening: '--', closing: '-- '}}",
            "canon.dynamic_suffix.closing: the same line as `opening`",
        ),
        ('server: {"po\\nrt": 1}', "server.'po\\nrt': unknown key"),
    ],
)
def test_a_wrong_setting_is_named_with_its_line(mistakes, section, expected):
    (problem,) = mistakes(f"# first line\n{MODELS}{section}\n")
    assert problem.startswith(f"gateway.yaml:3: {expected}")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("{replicas: [http://h]}", "models[0].id: required, but missing (add it)"),
        ("{id: m}", "models[0].replicas: expected at least one replica (add its URL, or say in discover"),
        ("{id: m, replicas: []}", "models[0].replicas: expected at least one replica"),
        ("{id: m, replicas: http://h}", "models[0].replicas: expected a list (`- ` before each item), got 'http://h'"),
        ("{id: m, replicas: [{id: x}]}", "models[0].replicas[0].url: required, but missing"),
        ("{id: m, replicas: [{url: http://h, event: auto}]}", "models[0].replicas[0].event: unknown key"),
        (
            "{id: m, replicas: [{url: http://h, events: 'yes'}]}",
            "models[0].replicas[0].events: expected auto, off, or an address such as tcp://vllm-0:5557",
        ),
        (
            "{id: m, replicas: [{url: http://h, events: 'tcp://*:5557'}]}",
            "models[0].replicas[0].events: expected the engine's host name",
        ),
        (
            "{id: m, replicas: [{url: http://h, events: 'tcp://h:99999'}]}",
            "models[0].replicas[0].events: expected auto, off, or an address",
        ),
        (
            "{id: m, replicas: [{url: http://h, replay: 'tcp://h:5657'}]}",
            "models[0].replicas[0].replay: only used beside an address in events",
        ),
        (
            "{id: m, replicas: [{url: http://h, events: 'tcp://h:5557', replay: 'h:5657'}]}",
            "models[0].replicas[0].replay: expected an address such as tcp://vllm-0:5557",
        ),
        ("{id: 4, replicas: [http://h]}", "models[0].id: expected text, got 4 (put it in quotes)"),
        ("{id: '', replicas: [http://h]}", "models[0].id: expected a name"),
        ("{id: ' m', replicas: [http://h]}", "models[0].id: expected a name"),
        ("{id: m, tokenizer: 'builtin:x', replicas: [http://h]}", "models[0].tokenizer: unknown built-in tokenizer"),
        ("{id: m, tokenizer: 'tiktoken:', replicas: [http://h]}", "models[0].tokenizer: tiktoken: wants"),
        (
            "{id: m, tokenizer: 'tiktoken:o200k:/m/x.tiktoken', replicas: [http://h]}",
            "models[0].tokenizer: tiktoken: wants NAME:FILE",
        ),
        (
            "{id: m, tokenizer: 'tiktoken:o200k_base:', replicas: [http://h]}",
            "models[0].tokenizer: tiktoken: wants NAME:",
        ),
        ("{id: m, tokenizer: '', replicas: [http://h]}", "models[0].tokenizer: expected text, got an empty one"),
        (
            "{id: m, chat_template: /no/such.jinja, replicas: [http://h]}",
            "models[0].chat_template: no such file: /no/such",
        ),
        (
            "{id: m, chat_template_kwargs: [], replicas: [http://h]}",
            "models[0].chat_template_kwargs: expected a mapping",
        ),
        (
            "{id: m, content_format: text, replicas: [http://h]}",
            "models[0].content_format: expected auto, string or openai",
        ),
        ("{id: m, replicas: [{url: http://h, id: 'a b'}]}", "models[0].replicas[0].id: the name travels in a header"),
        (
            "{id: m, replicas: [{url: http://h, api_key: ''}]}",
            "models[0].replicas[0].api_key: expected text, got an empty",
        ),
        ("m", "models[0]: expected a mapping (`key: value`), got 'm'"),
        # discovery
        ("{id: m, discover: {}}", "models[0].discover: expected exactly one of dns, kubernetes and file"),
        (
            "{id: m, discover: {file: {path: a}, dns: {srv: b}}}",
            "models[0].discover: expected exactly one of dns, kubernetes and file",
        ),
        ("{id: m, discover: {dns: {port: 1}}}", "models[0].discover.dns: expected either name (with port) or srv"),
        ("{id: m, discover: {dns: {name: a, srv: b}}}", "models[0].discover.dns: expected either name (with port)"),
        ("{id: m, discover: {dns: {name: a}}}", "models[0].discover.dns: port is required beside name"),
        ("{id: m, discover: {dns: {srv: a, port: 80}}}", "models[0].discover.dns: port is not used with srv"),
        ("{id: m, discover: {dns: {srv: a, server: ns1}}}", "models[0].discover.dns.server: expected an IP address"),
        ("{id: m, discover: {dns: {srv: a, server: '1.2.3.4:x'}}}", "models[0].discover.dns.server: expected an IP"),
        ("{id: m, discover: {dns: {srv: a, interval_seconds: 0}}}", "models[0].discover.dns.interval_seconds:"),
        ("{id: m, discover: {kubernetes: {}}}", "models[0].discover.kubernetes.service: required, but missing"),
        (
            "{id: m, discover: {kubernetes: {service: a/b}}}",
            "models[0].discover.kubernetes.service: expected a name as Kubernetes",
        ),
        (
            "{id: m, discover: {kubernetes: {service: a, api_url: 'ftp://x'}}}",
            "models[0].discover.kubernetes.api_url: expected an http or https URL",
        ),
        ("{id: m, discover: {file: replicas.yaml}}", "models[0].discover.file: expected a mapping"),
        (
            "{id: m, discover: {file: {path: a}, template: {region: eu}}}",
            "models[0].discover: template is not used with file",
        ),
        (
            "{id: m, discover: {dns: {srv: a}, template: {region: zone}}}",
            "models[0].discover: template.region: zone is only known in kubernetes",
        ),
        (
            "{id: m, discover: {dns: {srv: a}, template: {events: 'tcp://{hst}'}}}",
            "models[0].discover.template.events: expected auto, off, or an address",
        ),
        (
            "{id: m, discover: {dns: {srv: a}, template: {replay: 'tcp://{host}:1'}}}",
            "models[0].discover.template: only used beside an address in events",
        ),
    ],
)
def test_a_wrong_model_is_named_with_its_line(mistakes, model, expected):
    (problem,) = mistakes(f"models:\n  - {model}\n")
    assert problem.startswith(f"gateway.yaml:2: {expected}")


@pytest.mark.parametrize("content", ["log: {}\n", "models: []\n", "models:\n", "models: {id: m}\n"])
def test_without_a_model_there_is_nothing_to_serve(mistakes, content):
    (problem,) = mistakes(content)
    assert problem.startswith("gateway.yaml:1: models: ")


@pytest.mark.parametrize(
    "url",
    [
        "h:8000",
        "ftp://h",
        "http://",
        "http:///x",
        "http://h:99999",
        "http://h:0",
        "http://h:",
        "http://h h",
        "http://[::1",
        "",
    ],
)
def test_a_bad_url_is_refused_as_text_and_as_key(mistakes, url):
    expected = "expected an http or https URL, such as http://vllm-0:8000"
    problems = mistakes(f'models:\n- id: m\n  replicas:\n  - "{url}"\n  - url: "{url}"\n')
    assert problems == [
        f"gateway.yaml:4: models[0].replicas[0].url: {expected}",
        f"gateway.yaml:5: models[0].replicas[1].url: {expected}",
    ]


@pytest.mark.parametrize(
    ("url", "fix"),
    [
        ("http://h?x=1", "query or fragment"),
        ("http://h/#x", "query or fragment"),
        ("http://h/?", "query or fragment"),
        ("http://user:hunter2@h", "api_key"),
        ("http://h:8000/v1", "leave it off"),
        ("http://h:8000/prefix/v1/", "leave it off"),
    ],
)
def test_a_url_with_too_much_says_what_to_leave_off(mistakes, url, fix):
    (problem,) = mistakes(f'models: [{{id: m, replicas: ["{url}"]}}]')
    assert fix in problem
    assert "hunter2" not in problem


def test_duplicate_keys_name_both_lines(mistakes):
    problems = mistakes(f"{MODELS}log:\n  level: info\n  format: json\n  level: debug\nlog: {{}}\n")
    assert problems == [
        "gateway.yaml:5: log.level: stands twice, first on line 3 (remove one)",
        "gateway.yaml:6: log: stands twice, first on line 2 (remove one)",
    ]


def test_names_used_twice_anywhere_in_the_file(mistakes):
    problems = mistakes(
        """\
models:
  - id: a
    replicas:
      - http://h:80
      - {url: http://i:1, id: one}
  - id: b
    replicas:
      - http://H/
      - {url: http://k:1, id: one}
      - http://i:1/prefix
      - http://i:2
  - id: a
    replicas: [http://i:2]
"""
    )
    assert [problem.split(" (")[0] for problem in problems] == [
        "gateway.yaml:8: models[1].replicas[0].url: models[0].replicas[0] has this URL already",
        "gateway.yaml:9: models[1].replicas[1].id: models[0].replicas[1] is named one already",
        "gateway.yaml:12: models[2].id: models[0] has this id already",
        "gateway.yaml:13: models[2].replicas[0].url: models[1].replicas[3] has this URL already",
    ]


def test_every_mistake_is_reported_at_once_in_the_order_of_the_file(mistakes):
    problems = mistakes(
        """\
server:
  port: 8081
  admin_host: 0.0.0.0
  keep_alive_seconds: soon
models:
  - id: a
    replcias: []
    replicas:
      - http://h:1
      - url: ftp://x
        id: ${NOWHERE}
  - id: a
    chat_template: /no/such.jinja
    replicas:
      - http://h:1/
log:
  level: info
  level: info
relay:
  unhealthy_after: 0
"""
    )
    assert [problem.split(": ")[:2] for problem in problems] == [
        ["gateway.yaml:1", "server.admin_port"],
        ["gateway.yaml:1", "server.admin_token"],
        ["gateway.yaml:4", "server.keep_alive_seconds"],
        ["gateway.yaml:7", "models[0].replcias"],
        ["gateway.yaml:10", "models[0].replicas[1].url"],
        ["gateway.yaml:11", "models[0].replicas[1].id"],
        ["gateway.yaml:12", "models[1].id"],
        ["gateway.yaml:13", "models[1].chat_template"],
        ["gateway.yaml:15", "models[1].replicas[0].url"],
        ["gateway.yaml:18", "log.level"],
        ["gateway.yaml:20", "relay.unhealthy_after"],
    ]
