/* Records: the bytes of messages in the CommitLog; the layout is described in rucola.message.record. */

#include "speed.h"

#define BEFORE_ORIGIN 36 /* bytes of a record up to sysFlag */
#define MAX_TOPIC 128 /* bytes of a topic field, with its size */
#define MAX_FIXED (BEFORE_ORIGIN + MAX_ORIGIN + 4 + MAX_TOPIC + 2)
#define HOSTS_V6 0x30
#define BORN_HOST_V6 0x10
#define STORE_HOST_V6 0x20

/* A record but for its `Own`. `topic` is the topic field with its size, `origin` the packed fields from sysFlag to
preparedTransactionOffset, see `write_origin`. */
typedef struct {
    Span topic, origin;
    int32_t queue_id;
} Shared;

typedef struct {
    Span born_host, store_host;
    int64_t born_timestamp, store_timestamp, prepared_offset;
    int32_t sys_flag, reconsume_times;
} Origin;

#define MAX_ORIGIN 72 /* bytes from sysFlag to preparedTransactionOffset, with IPv6 hosts */

static int take_own(PyObject *flag, PyObject *body, PyObject *properties, Own *own) {
    return take_i32(flag, &own->flag) && take_bytes(body, &own->body) && take_bytes(properties, &own->properties);
}

/* Return the size of a record, or 0 if one of its fields does not fit. */
static int64_t encoded_size(const Shared *shared, const Own *own) {
    int64_t size = BEFORE_ORIGIN + shared->origin.size + 4 + shared->topic.size + 2 + own->properties.size;
    if (own->properties.size > MAX_PROPERTIES_SIZE || own->body.size > INT32_MAX - size)
        return 0;
    return size + own->body.size;
}

static uint8_t *write_span(uint8_t *at, Span span) {
    memcpy(at, span.at, (size_t)span.size);
    return at + span.size;
}

/* Write a record of `encoded_size` bytes and return its end. */
static uint8_t *write_record(uint8_t *at, const Shared *shared, const Own *own, int64_t queue_offset,
                             int64_t physical_offset) {
    put_u32(at, (uint32_t)encoded_size(shared, own));
    put_u32(at + 4, MESSAGE_MAGIC);
    put_u32(at + 8, crc32_of(own->body.at, (size_t)own->body.size) & 0x7FFFFFFF);
    put_u32(at + 12, (uint32_t)shared->queue_id);
    put_u32(at + 16, (uint32_t)own->flag);
    put_u64(at + 20, (uint64_t)queue_offset);
    put_u64(at + 28, (uint64_t)physical_offset);
    at = write_span(at + BEFORE_ORIGIN, shared->origin);
    put_u32(at, (uint32_t)own->body.size);
    at = write_span(at + 4, own->body);
    at = write_span(at, shared->topic);
    put_u16(at, (uint16_t)own->properties.size);
    return write_span(at + 2, own->properties);
}

/* Write the origin and return its size; 0 if a host has neither 8 nor 20 bytes. */
static Py_ssize_t write_origin(uint8_t *origin, const Origin *of) {
    uint8_t *at = origin;
    int32_t sys_flag = of->sys_flag & ~HOSTS_V6;
    if ((of->born_host.size != 8 && of->born_host.size != 20) || (of->store_host.size != 8 && of->store_host.size != 20))
        return 0;
    sys_flag |= (of->born_host.size == 20 ? BORN_HOST_V6 : 0) | (of->store_host.size == 20 ? STORE_HOST_V6 : 0);
    put_u32(at, (uint32_t)sys_flag);
    put_u64(at + 4, (uint64_t)of->born_timestamp);
    at = write_span(at + 12, of->born_host);
    put_u64(at, (uint64_t)of->store_timestamp);
    at = write_span(at + 8, of->store_host);
    put_u32(at, (uint32_t)of->reconsume_times);
    put_u64(at + 4, (uint64_t)of->prepared_offset);
    return at + 12 - origin;
}

/* Counterpart: encode of rucola.message.record.

(topic field, queue id, flag, body, properties, sysFlag, born timestamp, born host, store timestamp, store host,
reconsume times, prepared transaction offset, queue offset, physical offset) -> record | None */
PyObject *encode_record(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    uint8_t origin[MAX_ORIGIN];
    Shared shared;
    Own own;
    Origin of;
    int64_t queue_offset, physical_offset, size;
    PyObject *record;
    (void)module;
    if (count != 14 || !take_bytes(args[0], &shared.topic) || !take_i32(args[1], &shared.queue_id) ||
        !take_own(args[2], args[3], args[4], &own) || !take_i32(args[5], &of.sys_flag) ||
        !take_i64(args[6], &of.born_timestamp) || !take_bytes(args[7], &of.born_host) ||
        !take_i64(args[8], &of.store_timestamp) || !take_bytes(args[9], &of.store_host) ||
        !take_i32(args[10], &of.reconsume_times) || !take_i64(args[11], &of.prepared_offset) ||
        !take_i64(args[12], &queue_offset) || !take_i64(args[13], &physical_offset))
        return decline();
    shared.origin = (Span){origin, write_origin(origin, &of)};
    if (!shared.origin.size || shared.topic.size > MAX_TOPIC)
        return decline();
    size = encoded_size(&shared, &own);
    record = size ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size) : NULL;
    if (!record)
        return decline();
    write_record((uint8_t *)PyBytes_AsString(record), &shared, &own, queue_offset, physical_offset);
    return record;
}

/* The columns of a MessageInnerBatch that records are made of, and the queue offsets. */
enum { TOPICS, QUEUE_IDS, FLAGS, BODIES, PROPERTIES, SYS_FLAGS, BORN_TIMESTAMPS, RECONSUME_TIMES, QUEUE_OFFSETS,
       COLUMNS };

typedef struct {
    uint8_t topic_field[MAX_TOPIC], origin_field[MAX_ORIGIN];
    Shared shared;
    Own own;
    int64_t queue_offset;
} Row;

static int take_topic(PyObject *topic, Row *row) {
    Py_ssize_t size;
    const char *text = PyUnicode_Check(topic) ? PyUnicode_AsUTF8AndSize(topic, &size) : NULL;
    if (!text || size >= MAX_TOPIC)
        return 0;
    row->topic_field[0] = (uint8_t)size;
    memcpy(row->topic_field + 1, text, (size_t)size);
    row->shared.topic = (Span){row->topic_field, 1 + size};
    return 1;
}

static int take_row(PyObject *const *columns, Py_ssize_t number, Origin *origin, Row *row) {
    PyObject *item[COLUMNS];
    for (int column = 0; column < COLUMNS; column++)
        if (!(item[column] = PyList_GetItem(columns[column], number)))
            return 0;
    if (!take_topic(item[TOPICS], row) || !take_i32(item[QUEUE_IDS], &row->shared.queue_id) ||
        !take_own(item[FLAGS], item[BODIES], item[PROPERTIES], &row->own) ||
        !take_i32(item[SYS_FLAGS], &origin->sys_flag) || !take_i64(item[BORN_TIMESTAMPS], &origin->born_timestamp) ||
        !take_i32(item[RECONSUME_TIMES], &origin->reconsume_times) ||
        !take_i64(item[QUEUE_OFFSETS], &row->queue_offset))
        return 0;
    row->shared.origin = (Span){row->origin_field, write_origin(row->origin_field, origin)};
    return row->shared.origin.size != 0;
}

/* Return an upper bound of the size of the records; -1 if the columns are unusual. */
static int64_t bound_of(PyObject *const *columns, Py_ssize_t messages) {
    int64_t bound = 0;
    for (Py_ssize_t number = 0; number < messages; number++) {
        Span body, properties;
        if (!take_bytes(PyList_GetItem(columns[BODIES], number), &body) ||
            !take_bytes(PyList_GetItem(columns[PROPERTIES], number), &properties) || body.size > INT32_MAX ||
            properties.size > MAX_PROPERTIES_SIZE)
            return -1;
        bound += MAX_FIXED + body.size + properties.size;
    }
    return bound;
}

/* Counterpart: encode_many of rucola.message.record.

(topics, queue ids, flags, bodies, properties, sysFlags, born timestamps, reconsume times, queue offsets, born host,
store timestamp, store host, physical offset) -> (records as a bytearray, physical offsets, sizes) | None */
PyObject *encode_records(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Origin origin = {0};
    Row row;
    int64_t physical_offset, bound;
    Py_ssize_t messages;
    PyObject *records = NULL, *offsets = NULL, *sizes = NULL, *result = NULL;
    uint8_t *begin, *at;
    (void)module;
    if (count != COLUMNS + 4 || !take_bytes(args[COLUMNS], &origin.born_host) ||
        !take_i64(args[COLUMNS + 1], &origin.store_timestamp) || !take_bytes(args[COLUMNS + 2], &origin.store_host) ||
        !take_i64(args[COLUMNS + 3], &physical_offset) || !PyList_Check(args[BODIES]))
        return decline();
    messages = PyList_Size(args[BODIES]);
    for (int column = 0; column < COLUMNS; column++)
        if (!PyList_Check(args[column]) || PyList_Size(args[column]) != messages)
            return decline();
    if ((bound = bound_of(args, messages)) < 0 || physical_offset > INT64_MAX - bound)
        return decline();
    records = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)bound);
    offsets = PyList_New(messages);
    sizes = PyList_New(messages);
    if (!records || !offsets || !sizes)
        goto done;
    begin = at = (uint8_t *)PyByteArray_AsString(records);
    for (Py_ssize_t number = 0; number < messages; number++) {
        uint8_t *end;
        if (!take_row(args, number, &origin, &row) || !encoded_size(&row.shared, &row.own))
            goto done;
        end = write_record(at, &row.shared, &row.own, row.queue_offset, physical_offset);
        if (!put_item(offsets, number, PyLong_FromLongLong(physical_offset)) ||
            !put_item(sizes, number, PyLong_FromSsize_t(end - at)))
            goto done;
        physical_offset += end - at;
        at = end;
    }
    if (PyByteArray_Resize(records, at - begin) == 0)
        result = PyTuple_Pack(3, records, offsets, sizes);
done:
    Py_XDECREF(records);
    Py_XDECREF(offsets);
    Py_XDECREF(sizes);
    return result ? result : decline();
}
