"""Chat templates: the dialect, the refusals, the sandbox."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from sluiceway.errors import ConfigError, RequestError
from sluiceway.tokenizer.text.chat_template import MIN_OUTPUT_CHARS, OUTPUT_GROWTH, ChatTemplate
from sluiceway.tokenizer.text.tokenizer import TemplateSource

USER = {"role": "user", "content": "Hi <b> & 'you'"}
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def render(source: str, *messages: dict[str, Any], **variables: str) -> str:
    template = ChatTemplate(TemplateSource(source, variables), now=lambda: datetime(2026, 3, 4))
    return template.render(messages or (USER,))


def refusal_of(source: str, *messages: dict[str, Any]) -> str:
    with pytest.raises(RequestError) as caught:
        render(source, *messages)
    assert (caught.value.refusal.status, caught.value.refusal.param) == (400, "messages")
    return caught.value.refusal.message


def test_render_ends_with_the_beginning_of_the_assistants_turn() -> None:
    """Nothing is escaped."""
    assert render(CHATML) == "<|im_start|>user\nHi <b> & 'you'<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ bos_token }}|{{ eos_token }}|{{ unk_token }}", "<s>|</s>|"),
        ("{{ strftime_now('%d %b %Y') }}", "04 Mar 2026"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Hi <b> & \'you\'"}'),
        ("{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=True, sort_keys=True) }}", '{"a": 1, "b": "\\u00e9"}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 2 %}{% break %}{% endif %}"
            "{{ i }}{% endfor %}",
            "02",
        ),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "21"),
        ("{% if tools is none and documents is none %}none{% endif %}", "none"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
    ],
)
def test_render_supports_the_dialect_of_published_templates(source: str, text: str) -> None:
    """Trimmed blocks, special tokens, dates, plain JSON, loop controls, generation blocks."""
    assert render(source, bos_token="<s>", eos_token="</s>") == text


PUBLISHED_STYLES = {
    "default system prompt": (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "headers, trimmed content": """{% set loop_messages = messages %}
{% for message in loop_messages %}
    {% set content = '<|start|>' + message['role'] + '<|end|>\n\n' + message['content'] | trim + '<|eot|>' %}
    {% if loop.index0 == 0 %}
        {% set content = bos_token + content %}
    {% endif %}
    {{ content }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}""",
    "roles must alternate": """{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- else %}
        {% generation %}{{- ' ' + message['content'] + eos_token }}{% endgeneration %}
    {%- endif %}
{%- endfor %}""",
    "tools, namespaces, JSON": """{%- if tools %}{{ tools | tojson }}{%- endif %}
{%- set ns = namespace(last=messages|length - 1, seen=false) %}
{%- for message in messages[::-1] %}
    {%- if not ns.seen and message.role == 'user' %}
        {%- set ns.seen = true %}{%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{{- ns.last }}{{ messages | tojson(indent=2) }}{{ messages | map(attribute='role') | join(',') }}""",
}


@pytest.mark.parametrize("style", PUBLISHED_STYLES)
def test_render_equals_the_reference_library_on_templates_in_published_styles(style: str) -> None:
    """`transformers` defines the dialect."""
    from transformers.utils.chat_template_utils import render_jinja_template

    source = PUBLISHED_STYLES[style]
    first: dict[str, Any] = {"role": "user", "content": "  <b>Hi</b> & 'you' é 😀\n"}
    answer, second = {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": ""}
    for messages in ([first], [first, answer, second]):
        theirs, _ = render_jinja_template(
            [messages], chat_template=source, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
        )
        assert render(source, *messages, bos_token="<s>", eos_token="</s>") == theirs[0]


def test_render_refuses_in_the_templates_words_when_it_raises() -> None:
    """For example, a template without a system role says so to the client."""
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    assert "System role not supported" in refusal_of(source, {"role": "system", "content": "Be brief"})


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0]['absent'] + 'x' }}",
        "{{ messages[7].role }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ {'a': messages} | tojson | int / none }}",
    ],
)
def test_render_refuses_when_the_template_fails_on_the_messages(source: str) -> None:
    """Any error in the template's code becomes a 400."""
    assert "chat template" in refusal_of(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{% for i in range(10**7) %}{% endfor %}",
    ],
)
def test_render_refuses_a_template_that_leaves_the_sandbox(source: str) -> None:
    """Attributes that lead to Python, changes of the messages, and huge ranges are refused while rendering."""
    refusal_of(source)


def test_render_refuses_output_that_is_too_long() -> None:
    """The limit is a multiple of the chat's length, so long chats pass and nested loops do not."""
    flood = "{% for i in range(2000) %}{% for j in range(2000) %}xx{{ messages[0].content }}{% endfor %}{% endfor %}"
    assert str(MIN_OUTPUT_CHARS) in refusal_of(flood)
    long = {"role": "user", "content": "x" * (MIN_OUTPUT_CHARS // 2)}
    assert (
        len(render("{% for i in range(6) %}{{ messages[0].content }}{% endfor %}", long)) == 6 * MIN_OUTPUT_CHARS // 2
    )
    assert OUTPUT_GROWTH > 6


def test_render_takes_output_up_to_the_exact_limit() -> None:
    at_limit = f"{{{{ 'x' * {MIN_OUTPUT_CHARS} }}}}"
    assert len(render(at_limit, {"role": "user", "content": ""})) == MIN_OUTPUT_CHARS
    assert str(MIN_OUTPUT_CHARS) in refusal_of(at_limit + "y")


def test_render_leaves_the_callers_messages_alone() -> None:
    """Templates get copies. Messages may be any mapping."""
    message = {"role": "user", "content": "x"}
    render("{% set m = messages[0] %}{{ m.content }}", message)
    assert message == {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('x' * 5000) }}", "x" * 300 + "."),
        ("{{ raise_exception('Two\\n  lines.') }}", ": Two lines."),
        ("{{ raise_exception('half \\ud800') }}", r"half \ud800."),
        ("{{ raise_exception('') }}", "TemplateError."),
    ],
)
def test_render_refuses_in_a_short_line_whatever_the_template_says(source: str, words: str) -> None:
    """The text of the error reaches a client, as JSON, and the log."""
    assert refusal_of(source).endswith(words)


def test_render_refuses_when_the_rendering_is_not_unicode() -> None:
    """A template can write half of a surrogate pair."""
    assert "cannot render" in refusal_of("{{ '\\ud800' }}")


def test_render_names_the_type_of_an_error_without_text() -> None:

    class Wordless:
        def __radd__(self, other: str) -> str:
            raise Mute

    assert refusal_of(CHATML, {"role": "user", "content": Wordless()}).endswith("Mute.")


class Mute(Exception):
    def __str__(self) -> str:
        raise MemoryError


DEEP = "{% for a in messages %}" * 30 + "{% endfor %}" * 30


@pytest.mark.parametrize("source", ["{% for %}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", DEEP])
def test_template_is_refused_at_load_when_it_does_not_compile(source: str) -> None:
    """The error is one line. Python nests no more than twenty loops."""
    with pytest.raises(ConfigError, match="chat_template") as caught:
        ChatTemplate(TemplateSource(source, {}))
    assert "\n" not in str(caught.value)
