"""A chat template that misbehaves: its chats are refused, and everything else continues."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.requests import CHAT, ENDLESS, completion, error_of, open_stream, served_name, take, wait_quiet
from support.server import Server
from support.tiny_directories import CONTEXT, write_model

_LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"

HOSTILE = {
    "loop": (_LOOP, "template_timeout"),
    "exponential output": (
        "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        "invalid_value",
    ),
    "memory": ("{{ 'a' * (messages|length * 2000000000) }}", "invalid_value"),
    "flood": ("{% for i in range(99999) %}{% for j in range(99999) %}xxxx{% endfor %}{% endfor %}", "invalid_value"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "invalid_value"),
    "raise": ("{{ raise_exception('no') }}", "invalid_value"),
    "undefined": ("{{ nothing.at.all }}", "invalid_value"),
    "range": ("{% for i in range(10**9) %}{% endfor %}", "invalid_value"),
    "sandbox": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "invalid_value"),
    "surrogate": ("{{ '\\ud800' }}", "invalid_value"),
}
TEMPLATE = (
    "".join(
        f"{{% {'if' if not i else 'elif'} messages[0].content == '{name}' %}}{source}"
        for i, (name, (source, _)) in enumerate(HOSTILE.items())
    )
    + "{% endif %}{{ messages[0].content }}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = write_model(tmp_path_factory.mktemp("model"), TEMPLATE)
    with Server(path, "--dtype", "float32", "--kv-cache-tokens", str(CONTEXT)) as server:
        yield server


def chat(server: Server, content: str) -> dict[str, object]:
    messages = [{"role": "user", "content": content}]
    return {"model": served_name(server), "messages": messages, "max_tokens": 4, "ignore_eos": True}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_chat_is_refused_when_its_template_fails_and_others_continue(server: Server, name: str) -> None:
    """Meanwhile a stream gets its tokens, and other chats are answered."""
    connection, events = open_stream(server, completion(server, "a", n_tokens=ENDLESS))
    with connection:
        take(events, 2)
        with server.connect() as asking:
            asking.request("POST", CHAT, chat(server, name))
            take(events, 5)
            status, answer = server.post(CHAT, chat(server, "hello"))
            assert status == 200 and answer["usage"]["completion_tokens"] == 4
            refused = asking.read_answer()
        error = error_of(refused.json())
        assert (refused.status, error["code"], error["param"]) == (400, HOSTILE[name][1], "messages")
        take(events, 5)
    status, _ = server.post(CHAT, chat(server, "hello"))
    assert status == 200
    wait_quiet(server)


def test_a_client_that_leaves_while_its_chat_is_rendered_leaves_nothing_behind(server: Server) -> None:
    """Its rendering ends at its time limit; its request ends immediately."""
    with server.connect() as leaving:
        leaving.request("POST", CHAT, chat(server, "loop"))
        status, _ = server.post(CHAT, chat(server, "hello"))
        assert status == 200
    wait_quiet(server)
