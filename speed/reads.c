/* Reads: records that units or an index point at. */

#include "speed.h"

#include <unistd.h>

#define RECORD_GUESS 4096 /* bytes in which most records fit */
#define MAX_TOPIC_LENGTH 127
#define HOSTS_V6 0x30

int64_t record_size(const uint8_t *at, int64_t left, int64_t physical_offset) {
    int64_t size, position, body_size;
    uint32_t sys_flag;
    if (left < MIN_RECORD_SIZE)
        return 0;
    size = get_i32(at);
    if (get_u32(at + 4) != MESSAGE_MAGIC || size < MIN_RECORD_SIZE || size > left || get_i64(at + 28) != physical_offset)
        return 0;
    sys_flag = get_u32(at + 36);
    position = 88 + (sys_flag & BORN_HOST_V6 ? 12 : 0) + (sys_flag & STORE_HOST_V6 ? 12 : 0);
    if (size < position + 3)
        return 0;
    body_size = get_i32(at + position - 4);
    if (body_size < 0 || position + body_size + 3 > size)
        return 0;
    position += body_size;
    if (at[position] > MAX_TOPIC_LENGTH || position + 1 + at[position] + 2 > size ||
        !is_utf8(at + position + 1, at[position]))
        return 0;
    position += 1 + at[position];
    return get_u16(at + position) <= MAX_PROPERTIES_SIZE && position + 2 + get_u16(at + position) == size ? size : 0;
}

/* Read `size` bytes at a position of a file, without the interpreter lock. Return 0 with an exception if it has fewer. */
static int read_at(int fd, uint8_t *at, int64_t size, int64_t position) {
    ssize_t got;
    Py_BEGIN_ALLOW_THREADS;
    got = pread(fd, at, (size_t)size, (off_t)position);
    Py_END_ALLOW_THREADS;
    if (got != size)
        PyErr_SetFromErrno(PyExc_OSError);
    return got == size;
}

/* The record at a position of a map or, if that is NULL, of a file that have `left` bytes more; NULL with or without an
exception. */
static PyObject *record_at(const uint8_t *map, int fd, int64_t position, int64_t left, int64_t physical_offset) {
    uint8_t guess[RECORD_GUESS], *copy;
    int64_t size, known = map || left < RECORD_GUESS ? left : RECORD_GUESS;
    PyObject *record;
    if (left < MIN_RECORD_SIZE || (!map && !read_at(fd, guess, known, position)))
        return NULL;
    size = get_i32(map ? map + position : guess);
    if (size < MIN_RECORD_SIZE || size > left || !(record = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size)))
        return NULL;
    if (known > size)
        known = size;
    copy = (uint8_t *)PyBytes_AsString(record);
    memcpy(copy, map ? map + position : guess, (size_t)known);
    if ((known < size && !read_at(fd, copy + known, size - known, position + known)) ||
        !record_size(copy, size, physical_offset))
        Py_CLEAR(record);
    return record;
}

/* Counterpart: CommitLog.records.

(map or descriptor, physical offset of its begin, bytes that the log has written there, physical offsets, max bytes)
-> records or None, up to the first offset elsewhere or more than `max bytes` | None if there are none */
PyObject *read_records(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Py_buffer view = {0};
    int64_t begin, written, physical_offset, max_bytes;
    int32_t fd = -1;
    PyObject *records = NULL;
    (void)module;
    if (count != 5 || !take_i64(args[1], &begin) || !take_i64(args[2], &written) || begin < 0 || written < 0 ||
        !PyList_Check(args[3]) || !take_i64(args[4], &max_bytes) ||
        (!take_i32(args[0], &fd) && PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0))
        return decline();
    if ((view.buf && written > view.len) || !(records = PyList_New(0)))
        goto done;
    for (Py_ssize_t number = 0; number < PyList_Size(args[3]) && max_bytes >= 0; number++) {
        PyObject *record;
        if (!take_i64(PyList_GetItem(args[3], number), &physical_offset) || physical_offset < begin ||
            physical_offset - begin >= written)
            break;
        record = record_at(view.buf, fd, physical_offset - begin, written - (physical_offset - begin), physical_offset);
        if (record)
            max_bytes -= PyBytes_Size(record);
        else if (!PyErr_Occurred())
            record = Py_NewRef(Py_None);
        if (!record || PyList_Append(records, record) < 0)
            Py_CLEAR(records);
        Py_XDECREF(record);
        if (!records)
            break;
    }
    if (records && !PyList_Size(records))
        Py_CLEAR(records);
done:
    if (view.buf)
        PyBuffer_Release(&view);
    return records ? records : decline();
}

/* A text that most records share with the one before: a topic or a host. */
typedef struct {
    Span bytes;
    PyObject *text;
} Text;

/* The text of bytes, a new reference; NULL for an invalid port, with or without an exception. */
static PyObject *text_of(Text *last, const uint8_t *at, Py_ssize_t size, int is_host) {
    if (!last->text || last->bytes.size != size || memcmp(last->bytes.at, at, (size_t)size) != 0) {
        Py_CLEAR(last->text);
        last->bytes = (Span){at, size};
        if (!is_host)
            last->text = PyUnicode_FromStringAndSize((const char *)at, size);
        else if (get_u32(at + 4) <= 0xFFFF)
            last->text = PyUnicode_FromFormat("%u.%u.%u.%u:%u", (unsigned)at[0], (unsigned)at[1], (unsigned)at[2],
                                              (unsigned)at[3], (unsigned)get_u32(at + 4));
    }
    Py_XINCREF(last->text);
    return last->text;
}

/* A new tuple, or NULL, with new references or NULL; NULL if it or one of them is NULL. */
static PyObject *filled(PyObject *row, PyObject **fields, int count) {
    for (int number = 0; number < count; number++)
        if (!row)
            Py_XDECREF(fields[number]);
        else if (!fields[number] || PyTuple_SetItem(row, number, fields[number]) < 0)
            Py_CLEAR(row);
    return row;
}

/* The fields of a record whose sizes agree, in the order of MessageExt; NULL with or without an exception. */
static PyObject *fields_of(const uint8_t *at, int64_t size, Text texts[3]) {
    int32_t body_size = get_i32(at + 84);
    const uint8_t *topic = at + 88 + body_size, *properties = topic + 1 + topic[0] + 2;
    PyObject *fields[18] = {
        text_of(&texts[0], topic + 1, topic[0], 0),
        PyLong_FromLong(get_i32(at + 12)),
        PyLong_FromLongLong(get_i64(at + 20)),
        PyLong_FromLongLong(get_i64(at + 28)),
        PyLong_FromLongLong(size),
        PyBytes_FromStringAndSize((const char *)at + 88, body_size),
        PyBytes_FromStringAndSize((const char *)properties, (Py_ssize_t)(at + size - properties)),
        PyLong_FromLong(get_i32(at + 16)),
        PyLong_FromLong(get_i32(at + 36)),
        PyLong_FromLong(get_i32(at + 8)),
        PyLong_FromLong(body_size),
        PyLong_FromLongLong(get_i64(at + 40)),
        text_of(&texts[1], at + 48, 8, 1),
        PyLong_FromLongLong(get_i64(at + 56)),
        text_of(&texts[2], at + 64, 8, 1),
        PyLong_FromLong(get_i32(at + 72)),
        PyLong_FromLongLong(get_i64(at + 76)),
        PyBytes_FromStringAndSize((const char *)at + 64, 8),
    };
    return filled(PyTuple_New(18), fields, 18);
}

/* Counterpart: decode_many of rucola.message.record, without decompression.

(records, max count) -> fields of each record, with its encoded properties | None if one is damaged or has IPv6 hosts */
PyObject *decode_records(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Span data;
    int64_t max_count, size;
    Text texts[3] = {{{NULL, 0}, NULL}, {{NULL, 0}, NULL}, {{NULL, 0}, NULL}};
    PyObject *rows, *row;
    (void)module;
    if (count != 2 || !take_bytes(args[0], &data) || !take_i64(args[1], &max_count) || !(rows = PyList_New(0)))
        return decline();
    for (Py_ssize_t position = 0; position < data.size && PyList_Size(rows) < max_count; position += (Py_ssize_t)size) {
        const uint8_t *at = data.at + position;
        int is_added = 0;
        size = data.size - position < MIN_RECORD_SIZE ? 0 : record_size(at, data.size - position, get_i64(at + 28));
        if (size && !(get_u32(at + 36) & HOSTS_V6) &&
            (int32_t)(crc32_of(at + 88, (size_t)get_i32(at + 84)) & 0x7FFFFFFF) == get_i32(at + 8) &&
            (row = fields_of(at, size, texts))) {
            is_added = PyList_Append(rows, row) == 0;
            Py_DECREF(row);
        }
        if (!is_added) {
            Py_CLEAR(rows);
            break;
        }
    }
    for (int number = 0; number < 3; number++)
        Py_XDECREF(texts[number].text);
    return rows ? rows : decline();
}

/* Find the last value of each name that is dispatched, as `parse` of rucola.message.properties. */
static void find_values(Dispatched *record) {
    static const char *const names[] = {"TAGS", "UNIQ_KEY", "KEYS", "INNER_MULTI_DISPATCH"};
    Span *const values[] = {&record->tags, &record->unique_key, &record->keys, &record->further};
    const uint8_t *at = record->properties.at, *end = at + record->properties.size;
    for (int number = 0; number < 4; number++)
        *values[number] = (Span){NULL, 0};
    while (at < end) {
        const uint8_t *separator = memchr(at, 2, (size_t)(end - at)), *next = separator ? separator : end;
        const uint8_t *between = memchr(at, 1, (size_t)(next - at));
        if (between && next - between > 1)
            for (int number = 0; number < 4; number++)
                if ((size_t)(between - at) == strlen(names[number]) &&
                    !memcmp(at, names[number], (size_t)(between - at)))
                    *values[number] = (Span){between + 1, next - between - 1};
        at = next + 1;
    }
}

/* The text of a value or None, a new reference. */
static PyObject *replaced_text(Span value) {
    if (!value.at)
        Py_RETURN_NONE;
    return PyUnicode_DecodeUTF8((const char *)value.at, value.size, "replace");
}

static PyObject *tags_code(Span tags) {
    PyObject *text = replaced_text(tags), *code = NULL;
    Py_ssize_t size;
    const char *utf8;
    if (text == Py_None)
        code = PyLong_FromLong(0);
    else if (text && (utf8 = PyUnicode_AsUTF8AndSize(text, &size)))
        code = PyLong_FromLong((int32_t)java_hash(0, (const uint8_t *)utf8, size));
    Py_XDECREF(text);
    return code;
}

/* Whether a queue can have this name: `check_queue_name` of rucola.store.consume_queue. */
static int is_queue_name(const uint8_t *topic, Py_ssize_t size, int32_t queue_id) {
    return size && queue_id >= 0 && !memchr(topic, '/', (size_t)size) && !memchr(topic, 0, (size_t)size) &&
           !(topic[0] == '.' && (size == 1 || (size == 2 && topic[1] == '.')));
}

int find_dispatched(const uint8_t *at, int64_t size, Dispatched *record) {
    const uint8_t *body, *topic, *properties;
    record->sys_flag = get_u32(at + 36);
    body = at + 88 + (record->sys_flag & BORN_HOST_V6 ? 12 : 0) + (record->sys_flag & STORE_HOST_V6 ? 12 : 0);
    topic = body + get_i32(body - 4);
    properties = topic + 1 + topic[0] + 2;
    record->topic = (Span){topic + 1, topic[0]};
    record->queue_id = get_i32(at + 12);
    record->queue_offset = get_i64(at + 20);
    record->physical_offset = get_i64(at + 28);
    record->store_timestamp = get_i64(at + (record->sys_flag & BORN_HOST_V6 ? 68 : 56));
    record->properties = (Span){properties, (Py_ssize_t)(at + size - properties)};
    find_values(record);
    return is_queue_name(record->topic.at, record->topic.size, record->queue_id);
}

/* The fields of a DispatchRequest, of a record whose sizes agree; NULL with or without an exception. */
static PyObject *request_of(const uint8_t *at, int64_t size, Text *last_topic) {
    Dispatched record;
    PyObject *row;
    if (!find_dispatched(at, size, &record) || !(row = PyTuple_New(11)))
        return NULL;
    PyObject *fields[11] = {
        text_of(last_topic, record.topic.at, record.topic.size, 0),
        PyLong_FromLong(record.queue_id),
        PyLong_FromLongLong(record.queue_offset),
        PyLong_FromLongLong(record.physical_offset),
        PyLong_FromLongLong(size),
        PyLong_FromLongLong(record.store_timestamp),
        PyLong_FromLong((int32_t)record.sys_flag),
        tags_code(record.tags),
        replaced_text(record.unique_key),
        replaced_text(record.keys),
        PyBytes_FromStringAndSize((const char *)record.properties.at, record.properties.size),
    };
    return filled(row, fields, 11);
}

/* Counterpart: read_requests of rucola.store.dispatch_request.

(buffer, position, end) -> fields of each request, up to the first record that is not whole or not valid | None */
PyObject *read_requests(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    int64_t position, end, size;
    Text last_topic = {{NULL, 0}, NULL};
    PyObject *rows, *row;
    (void)module;
    if (count != 3 || !take_i64(args[1], &position) || !take_i64(args[2], &end) ||
        PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return decline();
    rows = position < 0 || end > view.len ? NULL : PyList_New(0);
    for (; rows && end - position >= MIN_RECORD_SIZE; position += size) {
        const uint8_t *at = (const uint8_t *)view.buf + position;
        if (!(size = record_size(at, end - position, get_i64(at + 28))) || !(row = request_of(at, size, &last_topic)))
            break;
        if (PyList_Append(rows, row) < 0)
            Py_CLEAR(rows);
        Py_DECREF(row);
    }
    if (PyErr_Occurred())
        Py_CLEAR(rows);
    Py_XDECREF(last_topic.text);
    PyBuffer_Release(&view);
    return rows ? rows : decline();
}

/* Whether a filter accepts a tags code; -1 if it raises. */
static int is_accepted(PyObject *accepts, int64_t tags_code) {
    PyObject *code, *answer = NULL;
    int is_true = -1;
    if (accepts == Py_None)
        return 1;
    code = PyLong_FromLongLong(tags_code);
    if (code && (answer = PyObject_CallFunctionObjArgs(accepts, code, NULL)))
        is_true = PyObject_IsTrue(answer);
    Py_XDECREF(code);
    Py_XDECREF(answer);
    return is_true;
}

/* Consecutive records of a map. */
typedef struct {
    Py_ssize_t position, size;
} Range;

/* Copy ranges of a map into one bytes object. */
static PyObject *copy_ranges(const uint8_t *map, const Range *ranges, Py_ssize_t count, int64_t total) {
    PyObject *copy = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    uint8_t *at = copy ? (uint8_t *)PyBytes_AsString(copy) : NULL;
    for (Py_ssize_t number = 0; at && number < count; number++) {
        memcpy(at, map + ranges[number].position, (size_t)ranges[number].size);
        at += ranges[number].size;
    }
    return copy;
}

/* Counterpart: read_batch of rucola.store.read_batch, if all records are in one log file and none is damaged.

(units, queue offset of the first, map, physical offset of its begin, bytes that the log has written there, max count,
max bytes, accepts | None) -> (records, their number, units that were read) | None */
PyObject *read_units(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Span units;
    Py_buffer view;
    int64_t queue_offset, begin, written, max_count, max_bytes, total = 0, found = 0;
    Py_ssize_t done = 0, most, range_count = 0;
    PyObject *records, *result = NULL;
    Range *ranges;
    (void)module;
    if (count != 8 || !take_bytes(args[0], &units) || !take_i64(args[1], &queue_offset) || !take_i64(args[3], &begin) ||
        !take_i64(args[4], &written) || !take_i64(args[5], &max_count) || !take_i64(args[6], &max_bytes) ||
        queue_offset < 0 || begin < 0 || PyObject_GetBuffer(args[2], &view, PyBUF_SIMPLE) < 0)
        return decline();
    most = units.size / UNIT_SIZE;
    most = max_count < 1 ? 1 : max_count < most ? (Py_ssize_t)max_count : most; /* the first record is always read */
    if (!(ranges = PyMem_Malloc((size_t)(most ? most : 1) * sizeof(Range)))) {
        PyBuffer_Release(&view);
        return PyErr_NoMemory();
    }
    for (; units.size - done * UNIT_SIZE >= UNIT_SIZE; done++, queue_offset++) {
        const uint8_t *unit = units.at + done * UNIT_SIZE, *record;
        int64_t physical_offset = get_i64(unit), size = get_i32(unit + 8);
        Py_ssize_t position;
        int accepted;
        if (found && (found >= max_count || total + size > max_bytes))
            break;
        accepted = is_accepted(args[7], get_i64(unit + 12));
        if (accepted < 0) {
            PyMem_Free(ranges);
            PyBuffer_Release(&view);
            return NULL; /* raised by the filter */
        }
        if (!accepted)
            continue;
        if (physical_offset < begin || size < MIN_RECORD_SIZE || written > view.len ||
            physical_offset - begin > written - size)
            goto done;
        position = (Py_ssize_t)(physical_offset - begin);
        record = (const uint8_t *)view.buf + position;
        if (get_i32(record) != size || get_i64(record + 20) != queue_offset || get_i64(record + 28) != physical_offset)
            goto done;
        /* Records of a batch are neighbours: they are copied together. */
        if (range_count && ranges[range_count - 1].position + ranges[range_count - 1].size == position)
            ranges[range_count - 1].size += (Py_ssize_t)size;
        else
            ranges[range_count++] = (Range){position, (Py_ssize_t)size};
        found++;
        total += size;
    }
    if ((records = copy_ranges(view.buf, ranges, range_count, total)))
        result = Py_BuildValue("(NLn)", records, (long long)found, done);
done:
    PyMem_Free(ranges);
    PyBuffer_Release(&view);
    return result ? result : decline();
}
