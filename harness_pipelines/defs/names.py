"""Names of tables in Dagster: asset keys, steps, tags.

Dagster joins the parts of a name by underscores, allows tags of 63 characters, and refuses all definitions of a code
location when two of them share a name. So each name here belongs to one table, whatever the tables are called.
"""

from hashlib import sha256

from dagster import AssetKey

TAG_MAX = 63  #: characters of a tag's value
STEP_MAX = 63  #: characters of a step's name, so far as it is the table's
HASH_DIGITS = 12
TOPICS, BROKEN = "kafka", "broken"  #: keys of what is no table begin so
_TAKEN = {TOPICS, BROKEN}


def table_key(table: str, *part: str) -> AssetKey:
    """The asset of *table*, or by *part* the one of a stage.

    A namespace that is called like what the topics stand under gets a hyphen, which no namespace has.
    """
    namespace, name = table.split(".")
    return AssetKey([f"{namespace}-tables" if namespace in _TAKEN else namespace, name, *part])


def topic_key(topic: str) -> AssetKey:
    """The asset of a Kafka topic."""
    return AssetKey([TOPICS, topic])


def broken_key(name: str) -> AssetKey:
    """The asset that stands for a table that cannot be shown."""
    return AssetKey([BROKEN, name])


def step_name(table: str, step: str) -> str:
    """The name of a step of *table*: readable, and a hash behind it where the name alone could be another table's.

    A readable name has ``__`` once before the step's, a hashed one twice, so the two kinds never meet.
    """
    namespace, name = table.split(".")
    plain = f"{namespace}__{name}"
    is_plain = plain.count("__") == 1 and "___" not in plain and not plain.endswith("_")
    if is_plain and len(plain) <= STEP_MAX:
        return f"{plain}__{step}"
    return f"{plain[: STEP_MAX - HASH_DIGITS - 2]}__{_hash(table)}__{step}"


def table_tag(table: str) -> str:
    """The value of a tag that names *table*; the end of a long name gives way to a hash."""
    return table if len(table) <= TAG_MAX else f"{table[: TAG_MAX - HASH_DIGITS - 1]}-{_hash(table)}"


def _hash(table: str) -> str:
    return sha256(table.encode()).hexdigest()[:HASH_DIGITS]
