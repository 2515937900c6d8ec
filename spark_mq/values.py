"""Bodies as typed values: a struct by a schema, and beside it why a body is not of that schema. Over Spark's own parsers.

    schema = json_schema("orders.schema.json")    # or ValueSchema("json", "order BIGINT"), avro_schema("orders.avsc"),
                                                  # protobuf_schema("orders.desc", "shop.Order")
    whole, failed = split_values(parse_values(messages, schema))

`from_json` makes null of a field of another type, drops a field that it does not know, and the query succeeds. Here each such body has
null in `value` and its reason in `value_error`; `split_values` gives both parts, and `count_values` counts them.

Bodies in Confluent's wire format begin with a zero byte and the id of their schema (4 bytes, big-endian): `parse_confluent`.
Spark's parsers of Avro and Protobuf are packages of their own, of Spark's release: `spark.jars.packages` must name
`org.apache.spark:spark-avro_2.13:4.2.0` or `org.apache.spark:spark-protobuf_2.13:4.2.0`, or `spark.jars` its jars. They are not in
pyspark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from spark_mq.conditions import OptionError
from spark_mq.spark_api import (
    ArrayType,
    BooleanType,
    Column,
    DataFrame,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    SparkSession,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from spark_mq.spark_api import functions as f

__all__ = [
    "ValueSchema",
    "avro_schema",
    "count_values",
    "json_schema",
    "parse_confluent",
    "parse_values",
    "protobuf_schema",
    "split_values",
    "value_fields",
]

VALUE, ERROR = "value", "value_error"
_CORRUPT = "_spark_mq_unparsed"
_FILE_FIELD = b"\x0a"
"""The first byte of a FileDescriptorSet: its field `file`."""


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """A schema of bodies: of JSON as Spark writes it (DDL, or its own JSON), of Avro as Avro does, of Protobuf a message's name."""

    kind: Literal["json", "avro", "protobuf"]
    text: str
    required: tuple[str, ...] = ()
    """Fields of JSON that a body must have."""
    descriptors: bytes = b""
    """Of Protobuf: a FileDescriptorSet that has the message and what it imports."""

    @property
    def struct(self) -> StructType:
        """The fields of JSON. Raises OptionError for a text that is no schema."""
        from pyspark.errors import PySparkException

        try:
            if self.text.lstrip().startswith("{"):
                return StructType.fromJson(json.loads(self.text))
            found = StructType.fromDDL(self.text)
        except (PySparkException, KeyError, ValueError) as error:
            raise OptionError("values", f"{self.text!r} is no schema of Spark: {str(error).splitlines()[0]}") from error
        if not isinstance(found, StructType):
            raise OptionError("values", f"{self.text!r} is one type, and not fields with types")
        return found


def json_schema(file: str | Path) -> ValueSchema:
    """The schema of a file of JSON Schema: an object with typed properties. Raises OptionError for what a table cannot have."""
    text = Path(file).read_text("utf-8")
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise OptionError("values", f"{file} is no JSON: {error}") from error
    struct = _type_of(tree, str(file), "the schema")
    if not isinstance(struct, StructType):
        raise OptionError("values", f"{file}: the schema's type must be object")
    required = tree.get("required", [])
    return ValueSchema("json", struct.json(), tuple(name for name in required if name in struct.names))


def avro_schema(file: str | Path) -> ValueSchema:
    """The schema of a file of Avro (.avsc): a record. Raises OptionError."""
    text = Path(file).read_text("utf-8")
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise OptionError("values", f"{file} is no JSON: {error}") from error
    if not isinstance(tree, dict) or tree.get("type") != "record":
        raise OptionError("values", f"{file}: the schema's type must be record")
    return ValueSchema("avro", text)


def protobuf_schema(file: str | Path, message: str) -> ValueSchema:
    """A message of a file of descriptors, as `protoc --include_imports --descriptor_set_out=FILE` writes it. Raises OptionError."""
    descriptors = Path(file).read_bytes()
    if not message:
        raise OptionError("values", f"{file}: which of its messages? Give its full name, such as shop.Order")
    if message.rpartition(".")[2].encode() not in descriptors or descriptors[:1] != _FILE_FIELD:
        how = f"make it with protoc --include_imports --descriptor_set_out={file}"
        raise OptionError("values", f"{file} has no descriptor of a message {message}: {how}")
    return ValueSchema("protobuf", message, descriptors=descriptors)


def parse_values(messages: DataFrame, schema: ValueSchema, *, body: str = "body") -> DataFrame:
    """The messages with columns `value` and `value_error`, of which exactly one is null.

    Reads the column `body`, whose bytes are uncompressed. The columns of the messages stay.
    """
    return _PARSERS[schema.kind](messages, f.col(body), schema, f.lit(None).cast("string"))


def parse_confluent(
    messages: DataFrame, schemas: Mapping[int, ValueSchema], *, newest: int | None = None, body: str = "body"
) -> DataFrame:
    """As `parse_values`, of bodies in Confluent's wire format. `schemas` are the registry's, by id, all of one kind.

    Values have the fields of the schema with the id `newest` (default: the greatest). A body of an older schema of Avro is read by its
    own and shown by that one, as Avro's rules say; one of JSON or Protobuf is read by that one. A body with another id has an error
    that names it. So has one of Protobuf whose message is not the first of its schema.
    """
    if len({schema.kind for schema in schemas.values()}) != 1:
        raise OptionError("values", "the schemas of a registry must be there, and of one kind")
    target = schemas[max(schemas) if newest is None else newest]
    whole = f.col(body)
    is_framed = (f.octet_length(whole) >= 5) & (f.hex(f.substring(whole, 1, 1)) == "00")
    number = f.when(is_framed, f.conv(f.hex(f.substring(whole, 2, 4)), 16, 10).cast("bigint"))
    rest = f.when(is_framed, f.expr(f"substring(`{body}`, 6)"))
    known = f.array(*(f.lit(one).cast("bigint") for one in schemas))
    early = (
        f.when(~is_framed, f.lit("it does not begin with a zero byte and a schema id"))
        .when(~f.array_contains(known, number), f.concat(f.lit("schema id "), number, f.lit(" is not known")))
        .otherwise(f.lit(None))
    )
    if target.kind == "protobuf":  # the place of the message follows; the first one's is a zero byte
        is_first = f.hex(f.substring(whole, 6, 1)) == "00"
        early = f.when(early.isNotNull(), early).when(~is_first, f.lit("its message is not the first of its schema"))
        rest = f.when(is_framed & is_first, f.expr(f"substring(`{body}`, 7)"))
    if target.kind != "avro":
        return _PARSERS[target.kind](messages, rest, target, early)

    def value() -> Column:
        of_ids = ((number == one, _avro(rest, schema, target)) for one, schema in schemas.items())
        return reduce(lambda found, one: f.when(one[0], one[1]).otherwise(found), of_ids, f.lit(None))

    return _with_avro(messages, value, early)


def value_fields(spark: SparkSession, schema: ValueSchema) -> StructType:
    """The fields that `value` has. Raises OptionError for a schema that Spark does not take, or whose parser it does not have."""
    if schema.kind == "json":
        return schema.struct
    from pyspark.errors import PySparkException

    empty = spark.createDataFrame([], "body BINARY")
    try:
        found = parse_values(empty, schema).schema[VALUE].dataType
    except PySparkException as error:
        raise OptionError("values", f"Spark does not take the schema: {str(error).splitlines()[0]}") from error
    assert isinstance(found, StructType), "schemas of Avro and Protobuf are records"
    return found


def split_values(parsed: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The messages with a value, and those without one and their errors."""
    return parsed.where(f.col(ERROR).isNull()).drop(ERROR), parsed.where(f.col(ERROR).isNotNull()).drop(VALUE)


def count_values(parsed: DataFrame, name: str = "values") -> DataFrame:
    """The same, observed: `read` and `failed` of each query or batch, as Spark's observed metrics of that name."""
    return parsed.observe(name, f.count("*").alias("read"), f.count(ERROR).alias("failed"))


# JSON


def _of_json(messages: DataFrame, body: Column, schema: ValueSchema, early: Column) -> DataFrame:
    struct = schema.struct
    text = body.cast("string")
    with_rest = StructType([*struct.fields, StructField(_CORRUPT, StringType())])
    parsed = f.from_json(text, with_rest, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    rows = messages.withColumn("_spark_mq_parsed", parsed).withColumn("_spark_mq_keys", f.json_object_keys(text))
    keys = f.col("_spark_mq_keys")
    own: Callable[[str], Column] = lambda name: f.col(f"_spark_mq_parsed.`{name}`")  # noqa: E731
    strange = f.array_except(keys, f.array(*(f.lit(name) for name in struct.names)))
    missing = f.array_except(f.array(*(f.lit(name) for name in schema.required)), keys) if schema.required else None
    mistyped = f.array_compact(
        f.array(
            *(
                f.when(
                    own(field.name).isNull() & f.get_json_object(text, f"$['{field.name}']").isNotNull(),
                    f.lit(f"{field.name} is not {field.dataType.simpleString().upper()}"),
                )
                for field in struct
            )
        )
    )
    error = (
        f.when(early.isNotNull(), early)
        .when(keys.isNull(), f.lit("it is no JSON object"))
        .when(f.size(strange) > 0, f.concat(f.lit("it also has "), f.array_join(strange, ", ")))
    )
    if missing is not None:
        error = error.when(f.size(missing) > 0, f.concat(f.lit("it has no "), f.array_join(missing, ", ")))
    error = error.when(f.size(mistyped) > 0, f.array_join(mistyped, ", ")).when(
        own(_CORRUPT).isNotNull(), f.lit("it is not of the schema")
    )
    found = rows.withColumn(ERROR, error.otherwise(f.lit(None)))
    value = f.when(f.col(ERROR).isNull(), f.struct(*(own(name).alias(name) for name in struct.names)))
    return found.withColumn(VALUE, value).drop("_spark_mq_parsed", "_spark_mq_keys")


_TYPES: Mapping[str, DataType] = {
    "string": StringType(),
    "integer": LongType(),
    "number": DoubleType(),
    "boolean": BooleanType(),
}
_FORMATS: Mapping[str, DataType] = {"date-time": TimestampType(), "date": DateType()}


def _type_of(tree: Any, file: str, where: str) -> DataType:
    kinds = tree.get("type") if isinstance(tree, dict) else None
    kinds = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
    if len(kinds) != 1 or not isinstance(kinds[0], str):
        raise OptionError("values", f"{file}: {where} has no single type, and a column has one")
    if kinds[0] == "object" and tree.get("properties"):
        properties = tree["properties"].items()
        return StructType([StructField(name, _type_of(each, file, f"field {name}")) for name, each in properties])
    if kinds[0] == "array":
        return ArrayType(_type_of(tree.get("items"), file, f"{where}, its items"))
    if kinds[0] == "string" and tree.get("format") in _FORMATS:
        return _FORMATS[tree["format"]]
    if kinds[0] not in _TYPES:
        raise OptionError("values", f"{file}: {where} is {kinds[0]}, which no column of a table can be")
    return _TYPES[kinds[0]]


# Avro and Protobuf


def _of_avro(messages: DataFrame, body: Column, schema: ValueSchema, early: Column) -> DataFrame:
    return _with_avro(messages, lambda: _avro(body, schema, schema), early)


def _avro(body: Column, schema: ValueSchema, shown: ValueSchema) -> Column:
    from pyspark.sql.avro.functions import from_avro

    return from_avro(body, schema.text, {"mode": "PERMISSIVE", "avroSchema": shown.text})


def _with_avro(messages: DataFrame, value: Callable[[], Column], early: Column) -> DataFrame:
    """Spark's parser makes a record whose fields are all null of bytes that it cannot read. So does a message that has nothing else."""
    parsed, is_empty = _with_value(messages, value, "avro")
    return _judged(parsed, f.when(early.isNotNull(), early).when(is_empty, f.lit("it is not of the Avro schema")))


def _of_protobuf(messages: DataFrame, body: Column, schema: ValueSchema, early: Column) -> DataFrame:
    """Bytes of another message may be readable, as fields with unknown numbers: then no field of this one is there."""
    from pyspark.sql.protobuf.functions import from_protobuf

    options = {"mode": "PERMISSIVE"}
    parsed, is_empty = _with_value(
        messages, lambda: from_protobuf(body, schema.text, None, options, schema.descriptors), "protobuf"
    )
    error = (
        f.when(early.isNotNull(), early)
        .when(f.col(VALUE).isNull(), f.lit(f"it is not of the Protobuf message {schema.text}"))
        .when(is_empty & (f.octet_length(body) > 0), f.lit(f"it has no field of the Protobuf message {schema.text}"))
    )
    return _judged(parsed, error)


_PARSERS: Mapping[str, Callable[[DataFrame, Column, ValueSchema, Column], DataFrame]] = {
    "json": _of_json,
    "avro": _of_avro,
    "protobuf": _of_protobuf,
}


def _with_value(messages: DataFrame, value: Callable[[], Column], parser: str) -> tuple[DataFrame, Column]:
    """The messages with `value`, and whether no field of it has a value. A list or map without elements, which Protobuf has in place of
    null, is none.

    Raises OptionError where the session has not the parser's package.
    """
    from pyspark import __version__ as release
    from pyspark.errors import AnalysisException

    try:
        parsed = messages.withColumn(VALUE, value())
        kind = parsed.schema[VALUE].dataType
    except (AnalysisException, TypeError) as error:  # of Spark before 4.1 a TypeError
        if "_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE" not in str(error) and "JavaPackage" not in str(error):
            raise
        package = f"org.apache.spark:spark-{parser}_2.13:{release}"
        rule = f"the session has no parser of {parser.capitalize()}: start it with spark.jars.packages={package}"
        raise OptionError("values", rule) from error
    fields = kind.fields if isinstance(kind, StructType) else []
    absent = (_is_absent(f.col(f"{VALUE}.`{field.name}`"), field.dataType, parser) for field in fields)
    return parsed, reduce(lambda one, other: one & other, absent, f.lit(True))


def _is_absent(field: Column, kind: DataType, parser: str) -> Column:
    is_never_null = parser == "protobuf" and isinstance(kind, ArrayType | MapType)
    return f.size(field) == 0 if is_never_null else field.isNull()


def _judged(parsed: DataFrame, error: Column) -> DataFrame:
    found = parsed.withColumn(ERROR, error.otherwise(f.lit(None)))
    return found.withColumn(VALUE, f.when(f.col(ERROR).isNull(), f.col(VALUE)))
