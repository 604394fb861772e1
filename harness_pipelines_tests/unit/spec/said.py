"""What is said of each wrong spec of `wrong.py`, whole."""

from __future__ import annotations

SETTINGS = (
    "table, description, owners, tags, topic, topics, start, format, schema, columns, key, key_format, key_schema, "
    "delete, unavailable_value, views, layout, buffer, engine, shards, tier, recall, serve, on_error, unknown_fields,"
    " evolution, stop_above, quarantine_mb, transform, contract, retention, freshness, catalogs, mode"
)
TYPES = (
    "boolean, int, long, float, double, date, time, timestamp, timestamptz, string, binary, uuid, decimal(p,s), "
    "list<type>, map<key, value>, struct<name: type, ...>"
)
SAID = {
    "no YAML": "orders.yaml:1: not YAML: the `[` in this line is never closed",
    "a list": (
        "orders.yaml:1: a spec is a mapping of settings, such as `table: namespace.name`, not [{table: 'shop.orders'}]"
    ),
    "nothing": "orders.yaml: the spec is empty; it starts with `table: namespace.name`",
    "no columns": ("orders.yaml:1: columns: `columns` is missing; write `columns: {order_id: long, note: string}`"),
    "no table": ("orders.yaml:1: table: `table` is missing; write `table: namespace.name`"),
    "a table without a namespace": (
        "orders.yaml:1: table: 'orders' is not a table name; write namespace.name, each of a-z, 0-9 "
        "and _, beginning with a letter"
    ),
    "a table in capitals": (
        "orders.yaml:1: table: 'Shop.Orders' is not a table name; write namespace.name, each of a-z, "
        "0-9 and _, beginning with a letter"
    ),
    "a word that is none": (
        f"orders.yaml:3: colums: unknown setting `colums` (did you mean `columns`?); allowed: {SETTINGS}"
    ),
    "a word of another place": (
        f"orders.yaml:3: max_rows: unknown setting `max_rows`; write it below `tier` or `recall`; allowed: {SETTINGS}"
    ),
    "a topic with a space": (
        "orders.yaml:3: topic: 'my orders' is not a topic name; use 1 to 249 of A-Z, a-z, 0-9, `.`, `_` and `-`"
    ),
    "topics and topic": (
        "orders.yaml:4: topics: write either `topic: a` or `topics: [b, c]`, and names without commas"
    ),
    "an unknown format": (
        "orders.yaml:3: format: 'xml' is not allowed; allowed: json, avro, protobuf, json-schema, "
        "raw, debezium, debezium-avro"
    ),
    "a format of later": (
        "orders.yaml:3: format: `format: csv` is reserved: it is not decoded yet; write `format: json` or remove it"
    ),
    "an unknown type": (
        "orders.yaml:2: columns.id.type: expected a type, found 'number' (did you mean "
        f"decimal(p,s)?); allowed: {TYPES}"
    ),
    "a type of another database": (
        f"orders.yaml:2: columns.id.type: expected a type, found 'serial' (did you mean int?); allowed: {TYPES}"
    ),
    "a decimal without digits": (
        "orders.yaml:2: columns.id.type: type 'decimal': expected '(', found the end; a decimal "
        "names its digits and those behind the point, such as decimal(12,2)"
    ),
    "a decimal that is too large": (
        "orders.yaml:2: columns.id.type: type 'decimal(60,2)': a decimal has 1 to 38 digits, and 0 "
        "to all of them behind the point, such as decimal(12,2)"
    ),
    "no columns in columns": (
        "orders.yaml:2: columns: a table has 1 to 1,500 columns, not 0; name those to keep, such as `order_id: long`"
    ),
    "a column of ours": (
        "orders.yaml:2: columns._kafka_offset: the column name '_kafka_offset' is reserved, as are "
        "_kafka_*, _harness_*, _change_ordinal, _change_type, _commit_snapshot_id, _deleted, _file, "
        "_last_updated_sequence_number, _op, _partition, _pos, _row_id, _sample, _schema_version, "
        "_spec_id; give the field another name in the topic"
    ),
    "two columns that differ in case": (
        "orders.yaml:2: columns.ID: the column occurs twice, also as 'id' (names ignore case); keep one, or give one "
        "of the fields another name in the topic"
    ),
    "an unknown setting of a column": (
        "orders.yaml:2: columns.id.nullable: unknown setting `nullable` (did you mean `required`?); "
        "allowed: type, required, from, aliases, default, description"
    ),
    "a column without a type": ("orders.yaml:2: columns.id.type: `type` is missing; write `type: long`"),
    "a from that is none": (
        "orders.yaml:2: columns.at.from: 'unix' is not allowed; allowed: iso8601, epoch_days, "
        "epoch_s, epoch_ms, epoch_us, epoch_ns, ms_of_day, us_of_day, ns_of_day, number, base64, headers, "
        "raw_key, raw_value"
    ),
    "a from of another type": (
        "orders.yaml:2: columns.id.from: `from` is for date, time, timestamp, timestamptz, decimal "
        "and lists of them, not for long"
    ),
    "a default of another type": (
        "orders.yaml:2: columns.id.default: 'x' is no value of type long; write a number, such as 0"
    ),
    "a key that is no column": "orders.yaml:3: key: there is no column 'order_id'; columns: id, name",
    "a key of a double": (
        "orders.yaml:3: key: column 'id' of type double cannot be a key; key types: boolean, int, "
        "long, decimal, date, time, timestamp, timestamptz, string, uuid, binary"
    ),
    "a delete without a key": (
        "orders.yaml:3: delete: records can delete only in a table with a `key`; add one, or remove `delete`"
    ),
    "a delete without values": ("orders.yaml:4: delete.values: `values` is missing; write `values: [d]`"),
    "change events without a key": (
        "orders.yaml:1: key: `format: debezium` needs it: without a key each update of a row would count as "
        "one more row; name the columns of the source's primary key, such as `key: [id]`"
    ),
    "a schema of JSON": ("orders.yaml:3: schema: `format: json` has no schema; remove it, or write `format: avro`"),
    "views that are none": "orders.yaml:3: views: 'all' is not allowed; allowed: stream, batch, both",
    "a clustering by no column": ("orders.yaml:3: layout.columns: there is no column 'city'; columns: id, name"),
    "a duration without a unit that is known": (
        "orders.yaml:3: retention.versions: '3 weeks' is not a duration; write a number above 0 and "
        "ms, s, m, h or d (60s, 15m), or plain seconds"
    ),
    "a size without a number": (
        "orders.yaml:3: tier.max_bytes: 'big' is not a size; write a whole number above 0 and B, KB, "
        "MB, GB or TB (256MB), or plain bytes"
    ),
    "a negative count": "orders.yaml:3: tier.max_rows: write a number of at least 1, not -1",
    "a start that is none": (
        "orders.yaml:3: start: 'newest' is not a start; allowed: earliest, latest, {timestamp: 2026-01-01T00:00:00Z}"
    ),
    "a time without a zone": (
        "orders.yaml:3: start.timestamp: '2026-01-01 00:00' has no time zone; write one such as 2026-01-01T00:00:00Z"
    ),
    "a share above all": (
        "orders.yaml:3: stop_above.refused: '120%' is not a share; write 0% to 100%, such as 5%, or "
        "a number such as 0.05"
    ),
    "two ways to stop": (
        "orders.yaml:4: stop_above: the table stops at the first refused record (`on_error: stop`); remove one of them"
    ),
    "a check of no column": (
        "orders.yaml:3: contract.columns.amount.ge: there is no column 'amount'; columns: id, name"
    ),
    "a check that is none": (
        "orders.yaml:3: contract.columns.id.min: unknown setting `min` (did you mean `ge`?); "
        "allowed: ge, gt, le, lt, eq, ne, isin, notin, matches, min_length, max_length, not_null, "
        "severity"
    ),
    "a transform without anything": "orders.yaml:3: transform: write `derive`, `filter` or both",
    "a derived column that is none": (
        "orders.yaml:3: transform.derive.total: there is no column 'total'; columns: id, name; add "
        "it to `columns` with its type"
    ),
    "a mode that is none": ("orders.yaml:3: mode: 'auto' is not allowed; allowed: runs, external_worker, manual"),
    "a tab": "orders.yaml:3: not YAML: a tab stands where spaces belong; YAML indents with spaces",
    "no space behind a colon": (
        "orders.yaml:1: not YAML: a space is missing after a colon: write `table: shop.orders`"
    ),
    "a setting indented too far": (
        "orders.yaml:4: not YAML: it is indented below line 3, which has a value already; align the two"
    ),
    "a setting indented too little": (
        "orders.yaml:4: not YAML: the line fits none of the settings above it: align it with one, or "
        "quote the text before it"
    ),
    "an open quote": "orders.yaml:1: not YAML: the quote that opens in this line is never closed",
    "an open brace": "orders.yaml:2: not YAML: the `{` in this line is never closed",
    "a comment of another language": (
        "orders.yaml:2: not YAML: a comma, or the closing `}`, is missing before character 11; a comment begins with #"
    ),
    "a control character": "orders.yaml:1: not YAML: the character U+0001 cannot stand in YAML; remove it",
    "yes for true": "orders.yaml:2: columns.id.required: write true or false, not 'yes'",
    "off is text": "orders.yaml:3: buffer: 'off' is not allowed; allowed: postgres, none, {max_bytes: 20GB}",
    "false for a word": "orders.yaml:3: views: false is not allowed; allowed: stream, batch, both",
    "on is a name": f"orders.yaml:3: on: unknown setting `on`; allowed: {SETTINGS}",
    "a tilde for a name": f"orders.yaml:3: ~: unknown setting `~`; allowed: {SETTINGS}",
    "a merge key": "orders.yaml:3: columns: the merge key `<<` is not read; write its settings out here",
    "an alias of nothing": (
        "orders.yaml:2: not YAML: `*cols` refers to `&cols`, which no line above has; a text that "
        "begins with `*` needs quotes"
    ),
    "a tag": (
        "orders.yaml:2: columns: the tag '!!python/object:os.system' is not read; write the values without a tag"
    ),
    "a tag of another tool": (
        "orders.yaml:1: table: 'NAME' has the tag '!env', which is not read; write text, a number, true, false or null"
    ),
    "two documents": "orders.yaml:3: not YAML: `---` begins a second document; a file holds one spec",
    "a setting twice": "orders.yaml:4: topic: `topic` occurs twice, first in line 3",
    "columns with dashes": (
        "orders.yaml:2: columns: write names with their types, such as `order_id: long`, not [{id: "
        "'long'}, {name: 'string'}]"
    ),
    "columns without types": (
        "orders.yaml:2: columns: write names with their types, such as `order_id: long`, not ['id', 'name']"
    ),
    "a text": "orders.yaml:1: a spec is a mapping of settings, such as `table: namespace.name`, not 'hello'",
    "columns that are not indented": (
        "orders.yaml:2: columns: `columns` has no value; indent what belongs to it below it"
    ),
    "a column without anything": (
        "orders.yaml:3: columns.id: it has no type; write one, such as `long`, or {type: long, required: true}"
    ),
    "a type in brackets": (
        "orders.yaml:2: columns.id: ['long'] is not a type; write one, such as `long`, or {type: long, required: true}"
    ),
    "a struct as a mapping": (
        "orders.yaml:3: columns.address.type: `type` is missing; a struct is written as one text: "
        "'struct<street: string, city: string>'\norders.yaml:4: columns.address.street: unknown "
        "setting `street`; allowed: type, required, from, aliases, default, description\norders.yaml:5: "
        "columns.address.city: unknown setting `city`; allowed: type, required, from, aliases, "
        "default, description"
    ),
    "a type of SQL": (
        "orders.yaml:2: columns.id.type: type 'varchar(20)': expected a type, found 'varchar' (did "
        f"you mean string?); allowed: {TYPES}"
    ),
    "a type with not null": (
        "orders.yaml:2: columns.id.type: type 'long not null': 'long' is a whole type, and 'not "
        "null' follows it; write {type: long, required: true}"
    ),
    "a decimal without a scale": (
        "orders.yaml:2: columns.id.type: type 'decimal(12)': expected ',', found ')'; a decimal "
        "names its digits and those behind the point, such as decimal(12,2)"
    ),
    "a list of nothing": (
        "orders.yaml:2: columns.id.type: type 'list': expected '<', found the end; a list names the "
        "type of its elements, such as list<string>"
    ),
    "a struct without colons": (
        "orders.yaml:2: columns.m.type: type 'struct<a int>': expected ':', found 'int'; a struct "
        "names its fields with their types, such as struct<city: string, zip: string>"
    ),
    "a struct without an end": (
        "orders.yaml:2: columns.m.type: type 'struct<a: int': expected '>', found the end; a struct "
        "names its fields with their types, such as struct<city: string, zip: string>"
    ),
    "a map by doubles": (
        "orders.yaml:2: columns.m.type: type 'map<double, string>': double cannot be the key of a "
        "JSON map; allowed: string, int, long, date, time, timestamp, timestamptz, uuid, decimal(p,s)"
    ),
    "a timestamp in SQL's words": (
        "orders.yaml:2: columns.m.type: type 'timestamp with time zone': 'timestamp' is a whole "
        "type, and 'with time zone' follows it (did you mean timestamptz?)"
    ),
    "an empty type": f"orders.yaml:2: columns.m.type: the type is empty; allowed: {TYPES}",
    "a table with a dash": (
        "orders.yaml:1: table: 'shop-eu.orders' is not a table name; write namespace.name, each of "
        "a-z, 0-9 and _, beginning with a letter"
    ),
    "a table with a catalog": (
        "orders.yaml:1: table: 'a.shop.orders' is not a table name; write namespace.name, each of "
        "a-z, 0-9 and _, beginning with a letter"
    ),
    "a number for a table": (
        "orders.yaml:1: table: 1.5 is not a table name; write namespace.name, each of a-z, 0-9 and "
        "_, beginning with a letter"
    ),
    "a table with a long name": (
        "orders.yaml:1: table: 'shop.oooooooooooooooooooooooooooooooooooooooooooooooooooooo... is "
        "too long; each part has at most 55 characters, not 80"
    ),
    "a table named as a view": (
        "orders.yaml:1: table: 'shop.orders__stream' ends with __stream, which names the stream view of "
        "another table; name it otherwise"
    ),
    "a letter that looks like another": (
        "orders.yaml:1: table: 'shop.\u043erders' is not a table name; write namespace.name, each of a-z, "
        "0-9 and _, beginning with a letter; character 6 is U+043E CYRILLIC SMALL LETTER O"
    ),
    "a letter that nobody sees": (
        "orders.yaml:3: key: there is no column 'i\\u200bd' (did you mean 'id'?); character 2 is "
        "U+200B ZERO WIDTH SPACE; columns: id, name"
    ),
    "spaces of a web page": (
        "orders.yaml:2: columns: `columns` has no value; indent what belongs to it below it\norders.yaml:3: "
        "'\\xa0\\xa0id': unknown setting `\xa0\xa0id`; character 1 is U+00A0 NO-BREAK SPACE; allowed: table, "
        "description, owners, tags, topic, topics, start, format, schema, columns, key, key_format, key_schema, "
        "delete, unavailable_value, views, layout, buffer, engine, shards, tier, recall, serve, on_error, "
        "unknown_fields, evolution, stop_above, quarantine_mb, transform, contract, retention, freshness, catalogs, "
        "mode"
    ),
    "quotes of a text processor": (
        "orders.yaml:1: table: '\u201cshop.orders\u201d' is not a table name; write namespace.name, each of "
        "a-z, 0-9 and _, beginning with a letter; character 1 is U+201C LEFT DOUBLE QUOTATION MARK"
    ),
    "a setting with a foreign letter": (
        "orders.yaml:3: t\u043epic: unknown setting `t\u043epic` (did you mean `topic`?); character 2 is "
        f"U+043E CYRILLIC SMALL LETTER O; allowed: {SETTINGS}"
    ),
    "a column with a long name": (
        "orders.yaml:2: columns.cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc: a column "
        "name has 1 to 63 bytes, not 64; give the field another name in the topic"
    ),
    "a column with U+0000": (
        "orders.yaml:2: columns: the name of a setting has U+0000 at character 2; remove the character"
    ),
    "a column with a quote": (
        'orders.yaml:2: columns.a"b: the column name \'a"b\' holds " or \\, which JSON escapes; fields with '
        "such names cannot be decoded; give the field another name in the topic"
    ),
    "a column without a name": (
        "orders.yaml:2: columns.'': a column name has 1 to 63 bytes, not 0; give the field another name in the topic"
    ),
    "a list for one topic": ("orders.yaml:3: topic: one topic is text; several are written `topics: ['a', 'b']`"),
    "a number for a topic": "orders.yaml:3: topic: write text in quotes: '5', not 5",
    "one topic as several": "orders.yaml:3: topics: one topic is written `topic: a`",
    "two topics in one text": (
        "orders.yaml:3: topic: write either `topic: a` or `topics: [a, b]`, and names without commas"
    ),
    "several topics with a key": (
        "orders.yaml:3: topics: a keyed table has one topic: all records of a key must be in one partition"
    ),
    "numbers for topics": ("orders.yaml:3: topics: write a name or a list of names, such as [a, b], not [1, 2]"),
    "a key with an order": ("orders.yaml:3: key: write a name or a list of names, such as [a, b], not {id: 'asc'}"),
    "a key column twice": "orders.yaml:3: key: 'id' is named twice; remove one",
    "a key in capitals": ("orders.yaml:3: key: there is no column 'ID' (did you mean 'id'?); columns: id, name"),
    "a key of many columns": "orders.yaml:3: key: write at most 16 entries, not 20",
    "a key with a default": (
        "orders.yaml:2: columns.id: key column 'id' has a `default`; each record must have its key: remove it"
    ),
    "a text key of two columns": (
        "orders.yaml:4: key_format: text holds one value, and the key has 2 columns; write the keys as json"
    ),
    "true for a delete rule": (
        "orders.yaml:4: delete: true is not a delete rule; allowed: tombstone, {field: op, values: [d]}"
    ),
    "a delete rule that never holds": (
        "orders.yaml:4: delete: `id` can never delete: it is of type long, and none of its values "
        "can be ['d']; write whole numbers that it can hold, without quotes"
    ),
    "a delete rule with one value": "orders.yaml:4: delete.values: write a list: ['d'], not 'd'",
    "a delete rule with a fraction": (
        "orders.yaml:4: delete.values.0: write text, a whole number, true or false, not 1.5"
    ),
    "a misspelt delete rule": (
        "orders.yaml:4: delete.feld: unknown setting `feld` (did you mean `field`?); allowed: field, values"
    ),
    "a keyed table without its changelog": (
        "orders.yaml:4: views: a keyed table needs the stream view, its changelog, from which the "
        "batch view is made; write `views: both` or `views: stream`"
    ),
    "a format in capitals": (
        "orders.yaml:3: format: 'JSON' is not allowed (did you mean `json`?); allowed: json, avro, "
        "protobuf, json-schema, raw, debezium, debezium-avro"
    ),
    "raw bytes for two columns": (
        "orders.yaml:2: columns: `format: raw` gives one column, of type binary or string, which has "
        "the value as it is; the others say `from: headers`, `from: raw_key`, `from: raw_value`"
    ),
    "a schema that is not Avro": (
        "orders.yaml:4: the `schema` of the spec: it is not a readable Avro schema: Expecting value: "
        "line 1 column 1 (char 0)"
    ),
    "a file for a schema": (
        "orders.yaml:4: schema: write settings below it, such as {file: orders.avsc}, not "
        "'orders.avsc'; allowed: file, text, message"
    ),
    "a schema file that is not there": (
        "orders.yaml:4: schema.file: nope.avsc cannot be read: No such file or directory"
    ),
    "a schema in two places": "orders.yaml:4: schema.file: write `file` or `text`, not both",
    "a schema without text": "orders.yaml:4: schema.text: `file` or `text` is missing",
    "a schema with two messages": (
        "orders.yaml:4: the `schema` of the spec: the schema has 2 messages (X, Y): say which by `message`"
    ),
    "a schema with another type": (
        "orders.yaml:4: the `schema` of the spec: `id`: the schema's string cannot be read as long"
    ),
    "evolution without schemas": (
        "orders.yaml:3: evolution: records of `format: json` name no schema that says what columns "
        "there are; those of avro, debezium-avro, protobuf do; write `evolution: manual`, or remove "
        "it"
    ),
    "a decimal that may be two things": (
        "orders.yaml:2: columns.a: column 'a' of type decimal(5, 2): say how events without a schema "
        "block write it: `from: base64` (the connector's decimal.handling.mode=precise, its default) "
        "or `from: number` (string, double)"
    ),
    "a duration of nothing": (
        "orders.yaml:3: tier.max_age: '0s' is not a duration; write a number above 0 and ms, s, m, h "
        "or d (60s, 15m), or plain seconds"
    ),
    "a duration in ISO 8601": (
        "orders.yaml:3: retention.versions: 'P1D' is not a duration; write a number above 0 and ms, "
        "s, m, h or d (60s, 15m), or plain seconds"
    ),
    "a duration of ages": (
        "orders.yaml:3: retention.versions: '999999999999999999999999d' is too long; write at most 36500d"
    ),
    "a lease of a day and more": "orders.yaml:3: retention.lease: a lease lasts at most 24h, not 25h",
    "a size in GiB": (
        "orders.yaml:3: tier.max_bytes: '1GiB' is not a size; write a whole number above 0 and B, "
        "KB, MB, GB or TB (256MB), or plain bytes"
    ),
    "a size with a fraction": (
        "orders.yaml:3: tier.max_bytes: '1.5GB' is not a size; write a whole number above 0 and B, "
        "KB, MB, GB or TB (256MB), or plain bytes"
    ),
    "a number in quotes": ("orders.yaml:3: tier.max_rows: write a whole number without quotes: 1000, not '1000'"),
    "a number with an exponent": "orders.yaml:3: tier.max_rows: write a whole number, not '1e6'",
    "a number with a comma": (
        "orders.yaml:3: tier.000: `000` has no value; a list stands in brackets, such as [a, b], and "
        "a number has no commas"
    ),
    "a number that is missing": ("orders.yaml:3: tier.max_rows: it has no value; write one, or remove the setting"),
    "a number that is too large": (
        "orders.yaml:3: tier.max_rows: write a number of at most 9,223,372,036,854,775,807, not "
        "99999999999999999999999999999999999999999999999999"
    ),
    "infinity": "orders.yaml:3: layout.sample: write a number, not '.inf'",
    "a list for settings": (
        "orders.yaml:3: tier: write settings below it, not ['max_rows', 5]; allowed: max_rows, max_bytes, max_age"
    ),
    "a setting outside of its section": (
        f"orders.yaml:3: max_age: unknown setting `max_age`; write it below `tier`; allowed: {SETTINGS}"
    ),
    "a bare time for a start": (
        "orders.yaml:3: start: '2026-01-01T00:00:00Z' is not a start; allowed: earliest, latest, "
        "{timestamp: 2026-01-01T00:00:00Z}"
    ),
    "a word for a time": (
        "orders.yaml:3: start.timestamp: 'yesterday' is not a time; write one such as 2026-01-01T00:00:00Z"
    ),
    "a share for settings": ("orders.yaml:3: stop_above: write settings below it, not '5%'; allowed: refused, of_last"),
    "a list without brackets": (
        "orders.yaml:3: layout.name: `name` has no value; a list stands in brackets, such as [a, b], "
        "and a number has no commas"
    ),
    "a clustering by a list": (
        "orders.yaml:3: layout.columns: column 'tags' of type list<string> has no order to cluster "
        "by; types that have: boolean, int, long, float, double, decimal, date, timestamp, "
        "timestamptz, time, string, uuid"
    ),
    "a sample that is too large": "orders.yaml:3: layout.sample: write a number of at most 0.5, not 2",
    "queries in one list": "orders.yaml:3: layout.queries.0: write a list: ['id'], not 'id'",
    "a contract without a name": (
        "orders.yaml:3: contract: `module` needs `name`: write {module: my_contracts, name: Orders}"
    ),
    "a contract that is not installed": (
        "orders.yaml:3: shop.orders: the contract's module 'no_such_module_x' is not there (No "
        "module named 'no_such_module_x'). Install the module where the table's workers run (Spark's "
        "executors too), or put its folder into PYTHONPATH, and apply the spec or start the worker "
        "again; no record was taken"
    ),
    "a contract by its path": (
        "orders.yaml:3: contract.module: 'contracts/orders.py' does not have the form of "
        "my_contracts, ^[A-Za-z_]\\w*(\\.[A-Za-z_]\\w*)*$"
    ),
    "a check with a text": ("orders.yaml:3: contract.columns.id.ge: id is long: it cannot be compared with text (abc)"),
    "a check with one value": (
        "orders.yaml:3: contract.columns.id.isin: write a list of values, such as [new, paid], not 5"
    ),
    "a check with a look-around": (
        "orders.yaml:3: contract.columns.name.matches: '(?=a)b' is not a regular expression of RE2 "
        "(Invalid regular expression: invalid perl operator: (?=); it has no look-around and no "
        "back-references"
    ),
    "a condition without an end": (
        "orders.yaml:3: contract.rows.0.expr: expr 'id >': expected a number, text in single quotes, "
        "true or false, found the end at character 5"
    ),
    "a condition with a misspelt column": (
        "orders.yaml:3: contract.rows.0.expr: expr 'id > nmae': there is no column 'nmae' (did you "
        "mean 'name'?); columns: id, name"
    ),
    "a condition with a function": (
        "orders.yaml:3: contract.rows.0.expr: expr 'lower(name) = 1': lower() is a function, and conditions have none"
    ),
    "a condition that is not in a list": (
        "orders.yaml:3: contract.rows: write a list: [{name: 'a', expr: 'id > 1'}], not {name: 'a', expr: 'id > 1'}"
    ),
    "a severity for no check": (
        "orders.yaml:3: contract.severities.id.gt: there is no check 'id.gt' (did you mean 'id.ge'?); checks: id.ge"
    ),
    "an expression without an end": (
        "orders.yaml:3: shop.orders: transform.derive.name: 'id +': the expression ends too early; nothing was changed"
    ),
    "an expression over an unknown field": (
        "orders.yaml:3: shop.orders: transform.derive.name: 'first || last': there is no field "
        "'first'; fields: id; declare it in `transform.fields`; nothing was changed"
    ),
    "an expression of another type": (
        "orders.yaml:3: shop.orders: transform.derive.id: \"length(name) || 'x'\": it gives string, "
        "which does not fit long without loss; write a CAST that says how; nothing was changed"
    ),
    "an expression that reads the clock": (
        "orders.yaml:3: shop.orders: transform.derive.name: 'now()::text': now() gives another value each "
        "time, or for each reader; take a field of the record; nothing was changed"
    ),
    "an expression over many records": (
        "orders.yaml:3: shop.orders: transform.derive.id: 'sum(x)': sum() looks at many records, and a "
        "column is made of one; do it where the table is read; nothing was changed"
    ),
    "an expression with a misspelt function": (
        "orders.yaml:3: shop.orders: transform.derive.name: 'uper(x)': there is no function uper() "
        '(did you mean "upper"?); nothing was changed'
    ),
    "a filter that is a number": (
        "orders.yaml:3: shop.orders: transform.filter: 'id': it gives long, which does not fit "
        "boolean without loss; write a condition; nothing was changed"
    ),
    "a filter of two statements": (
        "orders.yaml:3: shop.orders: transform.filter: 'id > 1; drop table x': syntax error at or "
        'near ";"; nothing was changed'
    ),
    "a derived key": (
        "orders.yaml:4: transform.derive.id: 'id' is a key column; a tombstone has only the record's "
        "key, so key columns must be fields"
    ),
    "a number for an expression": (
        'orders.yaml:3: transform.derive.id: write an SQL expression as text, such as "amount > 0", not 5'
    ),
    "a misspelt transform": (
        "orders.yaml:3: transform.derived: unknown setting `derived` (did you mean `derive`?); "
        "allowed: fields, derive, filter"
    ),
    "an alias that is a column": (
        "orders.yaml:2: columns.id.aliases.0: 'name' is a name of column 'name' (names ignore case); "
        "a field belongs to one column"
    ),
    "a default that is too large": "orders.yaml:2: columns.id.default: 3000000000 does not fit int exactly",
    "a default in a German form": (
        "orders.yaml:2: columns.id.default: '01.02.2026' is no value of type date; write a date such as 2026-01-31"
    ),
    "headers as text": (
        "orders.yaml:2: columns.h.from: `from: headers` gives list<struct<key: string, value: binary>>, not "
        "string; write that type"
    ),
    "a limit without a buffer": (
        "orders.yaml:4: stop_above: it does not work with `buffer: none` yet; remove it, or use `buffer: postgres`"
    ),
    "a misspelt limit": (
        "orders.yaml:3: recall.max_row: unknown setting `max_row` (did you mean `max_rows`?); allowed: max_rows"
    ),
    "settings in capitals": (
        f"orders.yaml:1: Table: unknown setting `Table` (did you mean `table`?); allowed: {SETTINGS}\n"
        "orders.yaml:2: Columns: unknown setting `Columns` (did you mean `columns`?); allowed: "
        f"{SETTINGS}"
    ),
    "a setting with a dash": (
        f"orders.yaml:3: on-error: unknown setting `on-error` (did you mean `on_error`?); allowed: {SETTINGS}"
    ),
    "a setting of another system": (
        f"orders.yaml:3: primary_key: unknown setting `primary_key` (did you mean `key`?); allowed: {SETTINGS}"
    ),
    "a setting indented below another": (
        "orders.yaml:5: tier.mode: unknown setting `mode`; it is a setting of the table: indent it "
        "as `table`; allowed: max_rows, max_bytes, max_age"
    ),
    "catalogs that are not in a list": (
        "orders.yaml:3: catalogs: write a list: [{name: 'lake', type: 'rest'}], not {name: 'lake', type: 'rest'}"
    ),
    "a catalog of another kind": (
        "orders.yaml:3: catalogs.0.type: `type: hive` is planned: no Hive metastore was run with it yet; write "
        "`type: rest` or `type: glue`, or remove the catalog"
    ),
    "a catalog without its address": (
        "orders.yaml:3: catalogs.0: `type: rest` needs the address of its server: write "
        "`uri: https://catalog.example/iceberg`"
    ),
    "a database of Glue in another": (
        "orders.yaml:3: catalogs.0: `namespace: a.b`: Glue's databases are not in one another; write one name"
    ),
    "a misspelt catalog": (
        "orders.yaml:3: catalogs.0.tabels: unknown setting `tabels` (did you mean `tables`?); allowed: name, type, "
        "uri, tables, namespace, properties"
    ),
    "a catalog without a scheme": (
        "orders.yaml:3: catalogs.0.uri: 'catalog:8181' is not an address; write https://catalog.example/iceberg"
    ),
    "a secret in the open": (
        "orders.yaml:3: catalogs.0.properties: 'credential' is a secret, and the ledger keeps the spec: write "
        "{env: NAME} or {file: PATH}"
    ),
    "a secret of an unknown place": (
        "orders.yaml:3: catalogs.0.properties.token.variable: unknown setting `variable`; allowed: env, file"
    ),
    "a catalog with its kind": (
        "orders.yaml:3: catalogs.0.kind: unknown setting `kind` (did you mean `type`?); allowed: name, type, "
        "uri, tables, namespace, properties"
    ),
    "checks that no value passes": (
        "orders.yaml:3: contract.columns.id.le: no value of id (long) passes `ge: 5` and `le: 1`, so each "
        "record would break it; correct it"
    ),
    "a start in milliseconds": (
        "orders.yaml:3: start.timestamp: 1700000000000 is not a time; write one such as 2026-01-01T00:00:00Z"
    ),
    "a start that is a year": (
        "orders.yaml:3: start.timestamp: 2026 is not a time; write one such as 2026-01-01T00:00:00Z"
    ),
    "a placeholder in quotes": (
        "orders.yaml:5: unavailable_value: 'say \"nothing\"' is not of ASCII's letters, digits and signs; "
        "write it without blanks, quotes and backslashes"
    ),
    "a type of variants": (
        "orders.yaml:2: columns.id.type: expected a type, found 'variant' (did you mean string?); allowed: "
        "boolean, int, long, float, double, date, time, timestamp, timestamptz, string, binary, uuid, "
        "decimal(p,s), list<type>, map<key, value>, struct<name: type, ...>"
    ),
    "a rule without its name": (
        "orders.yaml:3: contract.rows.0.name: `name` is missing; write `name: shipped_after_order`"
    ),
}
