/* Records: the bytes of messages in the CommitLog; the layout is described in rucola.message.record. */

#include "speed.h"

#define BEFORE_ORIGIN 36 /* bytes of a record up to sysFlag */
#define MAX_TOPIC 256
#define HOSTS_V6 0x30
#define BORN_HOST_V6 0x10
#define STORE_HOST_V6 0x20

static int take_own(PyObject *flag, PyObject *body, PyObject *properties, Own *own) {
    return take_i32(flag, &own->flag) && take_bytes(body, &own->body) && take_bytes(properties, &own->properties);
}

int64_t encoded_size(const Shared *shared, const Own *own) {
    int64_t size = BEFORE_ORIGIN + shared->origin.size + 4 + shared->topic.size + 2 + own->properties.size;
    if (own->properties.size > MAX_PROPERTIES_SIZE || own->body.size > INT32_MAX - size)
        return 0;
    return size + own->body.size;
}

static uint8_t *write_span(uint8_t *at, Span span) {
    memcpy(at, span.at, (size_t)span.size);
    return at + span.size;
}

uint8_t *write_record(uint8_t *at, const Shared *shared, const Own *own, int64_t queue_offset,
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

Py_ssize_t write_origin(uint8_t *origin, const Origin *of) {
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

/* Counterpart: encode_many of rucola.message.record. */
PyObject *encode_records(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Shared shared;
    Own own;
    int64_t queue_offset, physical_offset, total = 0;
    Py_ssize_t messages;
    PyObject *flags, *bodies, *properties, *records = NULL, *sizes = NULL, *result = NULL;
    uint8_t *at;
    (void)module;
    if (count != 8 || !take_bytes(args[0], &shared.topic) || !take_i32(args[1], &shared.queue_id) ||
        !take_bytes(args[5], &shared.origin) || !take_i64(args[6], &queue_offset) ||
        !take_i64(args[7], &physical_offset))
        return decline();
    flags = args[2], bodies = args[3], properties = args[4];
    if (!PyList_Check(flags) || !PyList_Check(bodies) || !PyList_Check(properties))
        return decline();
    messages = PyList_Size(bodies);
    if (PyList_Size(flags) != messages || PyList_Size(properties) != messages || shared.topic.size > MAX_TOPIC ||
        shared.origin.size > MAX_ORIGIN || queue_offset > INT64_MAX - messages)
        return decline();
    /* 1. The sizes, and whether all fields fit. */
    for (Py_ssize_t number = 0; number < messages; number++) {
        int64_t size = 0;
        if (take_own(PyList_GetItem(flags, number), PyList_GetItem(bodies, number), PyList_GetItem(properties, number),
                     &own))
            size = encoded_size(&shared, &own);
        if (!size || size > PY_SSIZE_T_MAX - total)
            return decline();
        total += size;
    }
    if (physical_offset > INT64_MAX - total)
        return decline();
    /* 2. The records, one behind the other. No Python code runs in between, so the lists are as they were. */
    records = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    sizes = PyList_New(messages);
    if (!records || !sizes)
        goto done;
    at = (uint8_t *)PyBytes_AsString(records);
    for (Py_ssize_t number = 0; number < messages; number++) {
        uint8_t *end;
        if (!take_own(PyList_GetItem(flags, number), PyList_GetItem(bodies, number), PyList_GetItem(properties, number),
                      &own))
            goto done;
        end = write_record(at, &shared, &own, queue_offset, physical_offset);
        if (!put_item(sizes, number, PyLong_FromSsize_t(end - at)))
            goto done;
        queue_offset++;
        physical_offset += end - at;
        at = end;
    }
    result = PyTuple_Pack(2, records, sizes);
done:
    Py_XDECREF(records);
    Py_XDECREF(sizes);
    return result ? result : decline();
}
