"""Chat templates in the styles that are in use, written from what each of them must print.

style -> (template, special tokens with their ids, token that ends an answer, what a rendering must contain)
"""

from __future__ import annotations

from typing import NamedTuple

from tests.validators.served import CHATML


class Style(NamedTuple):
    template: str
    special: dict[str, int]
    end: str
    prompt: str  # what a plain question with the prompt for an answer is rendered to, {} for the question


LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}\
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
MISTRAL = """\
{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set loop_messages = messages[1:] %}
{%- else %}{% set loop_messages = messages %}{% endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if tools is not none and loop.last %}{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {%- set before = system + '\n\n' if system is defined and loop.first else '' %}
        {{- '[INST] ' + before + message['content'] + '[/INST]' }}
    {%- else %}{{- ' ' + message['content'] | trim + eos_token }}{% endif %}
{%- endfor %}
"""
# The next turn's role is what ends an answer; contents are lists of parts.
GLM_PARTS = """\
[gMASK]<sop>{% for message in messages %}<|{{ message.role }}|>
{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
# harmony: a finished conversation ends in another token than a turn in its midst; generation tags; strftime_now.
HARMONY = """\
{%- macro said(message, last) -%}
{%- if message.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{% generation %}{{ message.content }}\
{% endgeneration %}{{ '<|return|>' if last and not add_generation_prompt else '<|end|>' }}
{%- else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endif %}
{%- endmacro %}
{{- '<|start|>system<|message|>' + strftime_now('%Y') + '<|end|>' }}
{%- for message in messages %}
{%- if message.role == 'ignored' %}{% continue %}{% endif %}
{{- said(message, loop.last) }}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}
"""
ZEPHYR = """\
{% for message in messages %}<|{{ message['role'] }}|>
{{ message['content'] + eos_token }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""

STYLES = {
    "chatml": Style(
        CHATML,
        {"<|endoftext|>": 500, "<|im_start|>": 501, "<|im_end|>": 502},
        "<|im_end|>",
        "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    ),
    "llama 3": Style(
        LLAMA3,
        {"<|begin_of_text|>": 500, "<|start_header_id|>": 501, "<|end_header_id|>": 502, "<|eot_id|>": 503},
        "<|eot_id|>",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "gemma": Style(
        GEMMA,
        {"<bos>": 500, "<eos>": 501, "<start_of_turn>": 502, "<end_of_turn>": 503},
        "<end_of_turn>",
        "<bos><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n",
    ),
    "mistral": Style(MISTRAL, {"<s>": 500, "</s>": 501, "[INST]": 502, "[/INST]": 503}, "</s>", "<s>[INST] {}[/INST]"),
    "parts": Style(
        GLM_PARTS,
        {"<|endoftext|>": 500, "<|user|>": 501, "<|assistant|>": 502, "<|system|>": 503},
        "<|user|>",
        "[gMASK]<sop><|user|>\n{}<|assistant|>\n",  # a line break after a block tag is not printed
    ),
    "harmony": Style(
        HARMONY, {"<|start|>": 500, "<|end|>": 501, "<|return|>": 502, "<|message|>": 503}, "<|return|>", ""
    ),
    "zephyr": Style(ZEPHYR, {"<s>": 500, "</s>": 501, "<|user|>": 502}, "</s>", "<|user|>\n{}</s>\n<|assistant|>\n"),
}
