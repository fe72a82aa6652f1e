"""Small templates that show how the engine decides whether a chat template takes content as a string or as parts."""

_EACH, _END = "{% for m in messages %}", "{% endfor %}"
_PARTS = "{% for p in m.content %}{{ p }}{% endfor %}"
_MACRO = "{% macro show(body) %}{% for p in body %}{{ p }}{% endfor %}{% endmacro %}"
_NAMED = "{% macro show(content) %}{% for p in content %}{{ p }}{% endfor %}{% endmacro %}"

FORMAT_TEMPLATES: list[str] = [
    f"{_EACH}{{{{ m.content }}}}{_END}",
    f"{_EACH}{_PARTS}{_END}",
    f"{_EACH}{{% set c = m.content %}}{{% for p in c %}}{{{{ p }}}}{_END}{_END}",
    f"{_EACH}{{% set content = m.content %}}{{% for p in content %}}{{{{ p }}}}{_END}{_END}",
    f"{_MACRO}{_EACH}{{{{ show(m.content) }}}}{_END}",
    f"{_MACRO}{_EACH}{{{{ show(body=m['content']) }}}}{_END}",
    f"{_NAMED}{_EACH}{{{{ show(m.content) }}}}{_END}",
    f"{_NAMED}{_EACH}{{{{ show(m.tool_calls) }}}}{_END}",
    f"{{% set list = messages[1:] %}}{{% for m in list %}}{{% for p in m.content | list %}}{{{{ p }}}}{_END}{_END}",
    f"{{% set ns = namespace(x=1) %}}{{% set ns.x = messages[1:] %}}{_EACH}{_PARTS}{_END}",
    f"{{% for a, b in messages %}}{_END}{_EACH}{_PARTS}{_END}",
    f"{_EACH}{{% for a, b in m.content %}}{{{{ a }}}}{_END}{_END}",
    f"{_EACH}{{% for t in m.tool_calls %}}{{{{ t }}}}{_END}{_END}",
    f"{_EACH}{{% generation %}}{_PARTS}{{% endgeneration %}}{_END}",
    f"{{% for m in messages[1:] if m.role %}}{{% for p in m['content'][:2] %}}{{% break %}}{_END}{_END}",
    "{% for p in messages[0].content %}{{ p }}{% endfor %}",
    "{% set m = messages[0] %}{% for p in m.content %}{{ p }}{% endfor %}",
    "{% broken",
]
