"""Specs that are wrong as YAML, or as it was before or elsewhere, each with what is said of it."""

from __future__ import annotations

from itertools import pairwise

_HEAD = "table: shop.orders\n"
_COLUMNS = "columns: {id: long, name: string}\n"


def _with(words: str) -> str:
    return f"{_HEAD}{_COLUMNS}{words}\n"


CASES: dict[str, tuple[str, str]] = {
    "a document without anything": (
        "---\n",
        "orders.yaml:1: the spec is empty; it starts with `table: namespace.name`",
    ),
    "null for a spec": (
        "null\n",
        "orders.yaml:1: the spec is empty; it starts with `table: namespace.name`",
    ),
    "text behind the end": (
        _with("...\ntable: x"),
        "orders.yaml:4: not YAML: the spec ends above this line, and a file holds one; remove what "
        "follows, or indent it",
    ),
    "an empty second document": (
        _with("---"),
        "orders.yaml:3: not YAML: `---` begins a second document; a file holds one spec",
    ),
    "a version of YAML that is none": (
        "%YAML 3.0\n---\ntable: shop.orders\n" + _COLUMNS,
        "orders.yaml:1: not YAML: the version of YAML is 1.1 or 1.2; remove the line that begins with %YAML",
    ),
    "true in quotes": (
        _HEAD + "columns: {id: {type: long, required: 'true'}}\n\n",
        "orders.yaml:2: columns.id.required: write true or false without quotes: true, not 'true'",
    ),
    "1 for true": (
        _HEAD + "columns: {id: {type: long, required: 1}}\n\n",
        "orders.yaml:2: columns.id.required: write true or false, not 1",
    ),
    "an octal number": (
        _with("tier: {max_rows: 010}"),
        "orders.yaml:3: tier.max_rows: write a whole number without zeros in front, not '010'",
    ),
    "an octal number of YAML 1.2": (
        _with("tier: {max_rows: 0o17}"),
        "orders.yaml:3: tier.max_rows: write a whole number in decimal digits: 15, not '0o17'",
    ),
    "a hexadecimal number": (
        _with("tier: {max_rows: 0x1F}"),
        "orders.yaml:3: tier.max_rows: write a whole number in decimal digits: 31, not '0x1F'",
    ),
    "a binary number": (
        _with("tier: {max_rows: 0b11}"),
        "orders.yaml:3: tier.max_rows: write a whole number in decimal digits: 3, not '0b11'",
    ),
    "a sexagesimal number": (
        _with("tier: {max_rows: 1:30:00}"),
        "orders.yaml:3: tier.max_rows: write a whole number, not '1:30:00'",
    ),
    "a sexagesimal duration": (
        _with("tier: {max_age: 1:30}"),
        "orders.yaml:3: tier.max_age: '1:30' is not a duration; write a number above 0 and ms, s, m, h or "
        "d (60s, 15m), or plain seconds",
    ),
    "a date for a table": (
        "table: 2026-01-01\n" + _COLUMNS,
        "orders.yaml:1: table: '2026-01-01' is not a table name; write namespace.name, each of a-z, 0-9 "
        "and _, beginning with a letter",
    ),
    "a version for a topic": (
        _with("topic: 1.10"),
        "orders.yaml:3: topic: write text in quotes: '1.1', not 1.1",
    ),
    "an anchor twice": (
        _HEAD + "columns: {a: &t long, b: &t string, c: *t}\n",
        "orders.yaml:2: not YAML: `&t` stands twice, first in line 2; give one of them another name",
    ),
    "an alias before its anchor": (
        _HEAD + "columns: {a: *t, b: &t string}\n",
        "orders.yaml:2: not YAML: `*t` refers to `&t`, which no line above has; a text that begins with "
        "`*` needs quotes",
    ),
    "an alias inside of its anchor": (
        _HEAD + "columns: &c {a: *c}\n",
        "orders.yaml:2: columns.a: an alias is inside the node that it names",
    ),
    "aliases of aliases": (
        "a: &a ["
        + "x," * 10
        + "]\n"
        + "".join(f"{n}: &{n} [{f'*{last},' * 10}]\n" for last, n in pairwise("abcdefghij"))
        + _HEAD
        + _COLUMNS,
        "orders.yaml:1: more than 200,000 values once its aliases are followed",
    ),
    "a merge key with a list": (
        _HEAD + "columns:\n  <<: [{id: long},{n: string}]\n  n: string\n",
        "orders.yaml:3: columns: the merge key `<<` is not read; write its settings out here",
    ),
    "a list for a name": (
        _HEAD + "columns:\n  ? [a, b]\n  : long\n",
        "orders.yaml:3: columns: the name of a setting is text, not a list or a mapping",
    ),
    "a column twice, once with an escape": (
        _HEAD + 'columns: {id: long, "\\u0069d": string}\n',
        "orders.yaml:2: columns.id: `id` occurs twice, first in line 2",
    ),
    "a setting of JSON twice": (
        '{"table":"a.b","columns":{"id":"long"},"columns":{"id":"int"}}',
        "orders.yaml:1: columns: `columns` occurs twice, first in line 1",
    ),
    "a name of thousands of letters": (
        _HEAD + "columns: {" + "c" * 5_000 + ": long}\n",
        "orders.yaml:2: not YAML: a name has at most 1,024 characters before its colon",
    ),
    "a setting of thousands of letters": (
        _with("s" * 5_000 + ": 1"),
        "orders.yaml:3: not YAML: a name has at most 1,024 characters before its colon",
    ),
    "an escape that rings": (
        _with('topic: "a\\ab"'),
        "orders.yaml:3: topic: 'a\\x07b' is not a topic name; use 1 to 249 of A-Z, a-z, 0-9, `.`, `_` and `-`",
    ),
    "a name of two lines": (
        _HEAD + 'columns: {"a\\nb": long}\n',
        "orders.yaml:2: columns.'a\\nb': the column name 'a\\nb' holds characters that cannot be printed; "
        "give the field another name in the topic",
    ),
    "an escape of terminals": (
        _with("topic: a\u001b[31mb"),
        "orders.yaml:3: not YAML: the character U+001B cannot stand in YAML; remove it",
    ),
    "an end of a line that cannot be seen": (
        _HEAD + "columns: {a\u0085b: long}\n",
        "orders.yaml:3: not YAML: a line ends at U+0085, behind 'columns: {a'; remove the character",
    ),
    "no character": (
        _with("topic: a\ufffeb"),
        "orders.yaml:3: not YAML: the character U+FFFE cannot stand in YAML; remove it",
    ),
    "a tab after a colon": (
        "table:\tshop.orders\n" + _COLUMNS,
        "orders.yaml:1: not YAML: a tab stands where spaces belong; YAML indents with spaces",
    ),
    "a tag of Python": (
        "table: !!python/name:os.system\n" + _COLUMNS,
        "orders.yaml:1: table: '' has the tag '!!python/name:os.system', which is not read; write text, a "
        "number, true, false or null",
    ),
    "a tag of bytes": (
        _with("topic: !!binary aGVsbG8="),
        "orders.yaml:3: topic: 'aGVsbG8=' has the tag '!!binary', which is not read; write text, a number, "
        "true, false or null",
    ),
    "a tag of sets": (
        _with("key: !!set {id}"),
        "orders.yaml:3: key: the tag '!!set' is not read; write the values without a tag",
    ),
    "a tag of times": (
        _with("start: {timestamp: !!timestamp 2026-01-01}"),
        "orders.yaml:3: start.timestamp: '2026-01-01' has the tag '!!timestamp', which is not read; write "
        "text, a number, true, false or null",
    ),
    "a tag that its value does not fit": (
        _HEAD + "columns: {id: {type: long, required: !!bool maybe}}\n",
        "orders.yaml:2: columns.id.required: 'maybe' has the tag '!!bool', which is not read; write text, "
        "a number, true, false or null",
    ),
    "a tag of an unknown kind": (
        "table: !x!y a.b\n" + _COLUMNS,
        "orders.yaml:1: not YAML: undefined tag handle '!x!'; write the values without a tag",
    ),
    "a variable of a shell": (
        _with("topic: ${TOPIC}"),
        "orders.yaml:3: topic: '${TOPIC}' is not a topic name; use 1 to 249 of A-Z, a-z, 0-9, `.`, `_` and "
        "`-`; a spec is taken as it is written: fill in variables and templates first",
    ),
    "a variable in a name": (
        "table: $NS.orders\n" + _COLUMNS,
        "orders.yaml:1: table: '$NS.orders' is not a table name; write namespace.name, each of a-z, 0-9 "
        "and _, beginning with a letter; a spec is taken as it is written: fill in variables and templates "
        "first",
    ),
    "a template": (
        _with("topic: {{ topic }}"),
        "orders.yaml:3: topic: a spec is taken as it is written: fill in variables and templates first",
    ),
    "a template in quotes": (
        _with("topic: '{{ topic }}'"),
        "orders.yaml:3: topic: '{{ topic }}' is not a topic name; use 1 to 249 of A-Z, a-z, 0-9, `.`, `_` "
        "and `-`; a spec is taken as it is written: fill in variables and templates first",
    ),
    "a template of Ruby": (
        _with("topic: <%= topic %>"),
        "orders.yaml:3: topic: '<%= topic %>' is not a topic name; use 1 to 249 of A-Z, a-z, 0-9, `.`, `_` "
        "and `-`; a spec is taken as it is written: fill in variables and templates first",
    ),
    "lists in lists": (
        _HEAD + "columns: " + "[" * 60 + "]" * 60 + "\n",
        "orders.yaml:2: nested more than 50 deep",
    ),
    "settings in settings": (
        _HEAD + "columns:\n" + "".join(" " * (at + 1) + "a:\n" for at in range(60)),
        "orders.yaml:52: nested more than 50 deep",
    ),
    "a number of thousands of digits": (
        _with("tier: {max_rows: " + "9" * 5_000 + "}"),
        "orders.yaml:3: tier.max_rows: '99999999999999999999999999999999999999999999999999999999999... has "
        "5,000 characters; a number has at most 400",
    ),
    "a name with its end of line": (
        "table: |\n  shop.orders\n" + _COLUMNS,
        "orders.yaml:1: table: 'shop.orders\\n' is not a table name; write namespace.name, each of a-z, "
        "0-9 and _, beginning with a letter",
    ),
    "columns as a text": (
        _HEAD + "columns: >\n  id: long\n",
        "orders.yaml:2: columns: write names with their types, such as `order_id: long`, not 'id: long\\n'",
    ),
    "a comma of another language": (
        _HEAD + "columns: {id: long\uff0c name: string}\n",
        "orders.yaml:2: not YAML: character 19 of 'columns: {id: long\uff0c name: string}' is U+FF0C; write `,`",
    ),
    "a colon of another language": (
        "table\uff1a shop.orders\n" + _COLUMNS,
        "orders.yaml:2: not YAML: character 6 of 'table\uff1a shop.orders' is U+FF1A; write `:`",
    ),
    "an equals sign": (
        "table = shop.orders\n",
        "orders.yaml:1: a spec is a mapping of settings, such as `table: namespace.name`, not 'table = shop.orders'",
    ),
    "TOML": (
        "[table]\nname='x'\n",
        "orders.yaml:2: not YAML: the spec ends above this line, and a file holds one; remove what "
        "follows, or indent it",
    ),
    "SQL": (
        "CREATE TABLE x (id int);\n",
        "orders.yaml:1: a spec is a mapping of settings, such as `table: namespace.name`, not 'CREATE "
        "TABLE x (id int);'",
    ),
    "a comma that is missing": (
        '{"table": "a.b" "columns": {}}',
        "orders.yaml:1: not YAML: a comma, or the closing `}`, is missing before character 17",
    ),
    "a list of specs": (
        "- table: a.b\n  columns: {id: long}\n- table: a.c\n  columns: {id: long}\n",
        "orders.yaml:1: a spec is a mapping of settings, such as `table: namespace.name`, not [{table: "
        "'a.b', columns: {id: 'long'}}, {table: 'a.c', colum...",
    ),
    "two types": (
        _HEAD + "columns: {id: {type: [long, string]}}\n",
        "orders.yaml:2: columns.id.type: write text, not ['long', 'string']",
    ),
    "a type as a mapping": (
        _HEAD + "columns: {id: {type: {list: long}}}\n",
        "orders.yaml:2: columns.id.type: write text, not {list: 'long'}",
    ),
    "a map between braces": (
        _HEAD + "columns: {a: map<string, long>}\n",
        "orders.yaml:2: columns.a: quote a type that has commas in it: 'map<string, long>'",
    ),
    "a decimal between braces": (
        _HEAD + "columns: {a: decimal(10,2)}\n",
        "orders.yaml:2: columns.a: quote a type that has commas in it: 'decimal(10, 2)'",
    ),
    "a key with orders": (
        _with("key: [{id: asc}]"),
        "orders.yaml:3: key: write a name or a list of names, such as [a, b], not [{id: 'asc'}]",
    ),
    "a list for a default": (
        _HEAD + "columns: {id: {type: long, default: [1]}}\n",
        "orders.yaml:2: columns.id.default: write a number, text, true or false, not [1]; dates and times are text",
    ),
    "a day that no month has": (
        _HEAD + "columns: {id: {type: date, default: 2026-01-32}}\n",
        "orders.yaml:2: columns.id.default: '2026-01-32' is no value of type date; write a date such as 2026-01-31",
    ),
    "a start by offsets": (
        _with("start: {offsets: {0: 5}}"),
        "orders.yaml:3: start.timestamp: `timestamp` is missing\norders.yaml:3: start.offsets: unknown "
        "setting `offsets`; allowed: timestamp",
    ),
    "dates for numbers": (
        _with("contract: {columns: {id: {isin: [2026-01-01]}}}"),
        "orders.yaml:3: contract.columns.id.isin: id is long: it cannot be compared with text (2026-01-01)",
    ),
    "a struct between braces": (
        _HEAD + "columns: {a: struct<x: int>, m: 'map<string, struct<x: int>>', b: map<string, decimal(9,2)>}\n",
        "orders.yaml:2: not YAML: a comma, or the closing `}`, is missing before character 22; quote a "
        "type that has colons or commas in it: 'struct<x: int>'",
    ),
    "a name without a colon": (
        _HEAD + "columns\nkey: id\n",
        "orders.yaml:2: not YAML: a colon is missing: a setting is written `name: value`",
    ),
    "a list that has no comma": (
        _with("topics: [a 'b']"),
        "orders.yaml:3: topics: \"a 'b'\" is not a topic name; use 1 to 249 of A-Z, a-z, 0-9, `.`, `_` and `-`",
    ),
    "a bracket of another language": (
        _HEAD + "columns: \uff5bid: long\uff5d\n",
        "orders.yaml:2: not YAML: character 10 of 'columns: \uff5bid: long\uff5d' is U+FF5B; write `{`",
    ),
}
