/* Records: the bytes of messages in the CommitLog. */

#include "speed.h"

#define BEFORE_ORIGIN 36 /* bytes of a record up to sysFlag; see rucola.message.record */

/* Take the items of a record that vary in a batch; return 0 unless they are of the usual form. */
static int take_record(PyObject *flag, PyObject *body, PyObject *properties, int32_t *flag_of, Span *spans) {
    return take_i32(flag, flag_of) && take_bytes(body, &spans[0]) && take_bytes(properties, &spans[1]) &&
           spans[1].size <= MAX_PROPERTIES_SIZE;
}

/* Counterpart: encode_many of rucola.message.record.

`topic` is the topic field with its size, `origin` the packed fields from sysFlag to preparedTransactionOffset. */
PyObject *encode_records(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Span topic, origin, spans[2];
    int32_t queue_id, flag;
    int64_t queue_offset, physical_offset, total = 0, fixed_size;
    Py_ssize_t messages;
    PyObject *flags, *bodies, *properties, *records = NULL, *sizes = NULL, *result = NULL;
    uint8_t *at;
    (void)module;
    if (count != 8 || !take_bytes(args[0], &topic) || !take_i32(args[1], &queue_id) || !take_bytes(args[5], &origin) ||
        !take_i64(args[6], &queue_offset) || !take_i64(args[7], &physical_offset))
        return decline();
    flags = args[2], bodies = args[3], properties = args[4];
    if (!PyList_Check(flags) || !PyList_Check(bodies) || !PyList_Check(properties))
        return decline();
    messages = PyList_Size(bodies);
    if (PyList_Size(flags) != messages || PyList_Size(properties) != messages || topic.size > 256 ||
        origin.size > 256 || queue_offset > INT64_MAX - messages)
        return decline();
    /* 1. The sizes, and whether all fields fit. */
    fixed_size = BEFORE_ORIGIN + origin.size + 4 + topic.size + 2;
    for (Py_ssize_t number = 0; number < messages; number++) {
        int64_t size;
        if (!take_record(PyList_GetItem(flags, number), PyList_GetItem(bodies, number),
                         PyList_GetItem(properties, number), &flag, spans))
            return decline();
        size = fixed_size + spans[0].size + spans[1].size;
        if (spans[0].size > INT32_MAX || size > INT32_MAX)
            return decline();
        total += size;
    }
    if (total > PY_SSIZE_T_MAX || physical_offset > INT64_MAX - total)
        return decline();
    /* 2. The records, one behind the other. */
    records = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    sizes = PyList_New(messages);
    if (!records || !sizes)
        goto done;
    at = (uint8_t *)PyBytes_AsString(records);
    for (Py_ssize_t number = 0; number < messages; number++) {
        uint32_t size;
        PyObject *item;
        (void)take_record(PyList_GetItem(flags, number), PyList_GetItem(bodies, number),
                          PyList_GetItem(properties, number), &flag, spans);
        size = (uint32_t)(fixed_size + spans[0].size + spans[1].size);
        put_u32(at, size);
        put_u32(at + 4, MESSAGE_MAGIC);
        put_u32(at + 8, crc32_of(spans[0].at, (size_t)spans[0].size) & 0x7FFFFFFF);
        put_u32(at + 12, (uint32_t)queue_id);
        put_u32(at + 16, (uint32_t)flag);
        put_u64(at + 20, (uint64_t)queue_offset);
        put_u64(at + 28, (uint64_t)physical_offset);
        at += BEFORE_ORIGIN;
        memcpy(at, origin.at, (size_t)origin.size);
        at += origin.size;
        put_u32(at, (uint32_t)spans[0].size);
        memcpy(at + 4, spans[0].at, (size_t)spans[0].size);
        at += 4 + spans[0].size;
        memcpy(at, topic.at, (size_t)topic.size);
        at += topic.size;
        put_u16(at, (uint16_t)spans[1].size);
        memcpy(at + 2, spans[1].at, (size_t)spans[1].size);
        at += 2 + spans[1].size;
        queue_offset++;
        physical_offset += size;
        item = PyLong_FromLong((long)size);
        if (!item || PyList_SetItem(sizes, number, item) < 0)
            goto done;
    }
    result = PyTuple_Pack(2, records, sizes);
done:
    Py_XDECREF(records);
    Py_XDECREF(sizes);
    return result ? result : decline();
}
