/* Runs: consecutive records of the log, and what is dispatched of them. */

#include "speed.h"

#define HEAD_SIZE 88

/* The store time of a record. */
static int64_t store_timestamp(const uint8_t *at) { return get_i64(at + (get_u32(at + 36) & BORN_HOST_V6 ? 68 : 56)); }

static int has_valid_crc(const uint8_t *at) {
    uint32_t sys_flag = get_u32(at + 36);
    const uint8_t *body = at + 88 + (sys_flag & BORN_HOST_V6 ? 12 : 0) + (sys_flag & STORE_HOST_V6 ? 12 : 0);
    return (crc32_of(body, get_u32(body - 4)) & 0x7FFFFFFF) == get_u32(at + 8);
}

/* Counterpart: scan_file of rucola.store.scan, up to the first record that is not whole or not valid.

(data, physical offset of its begin, whether bodies are checked) -> (positions: int64, the first 88 bytes of each
record, store timestamps: int64, end position) | None without a valid record */
PyObject *scan_records(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Span data;
    int64_t begin, check, position = 0, size;
    Py_ssize_t found = 0;
    PyObject *positions = NULL, *heads = NULL, *times = NULL, *result = NULL;
    int64_t *starts;
    (void)module;
    if (count != 3 || !take_bytes(args[0], &data) || !take_i64(args[1], &begin) || !take_i64(args[2], &check))
        return decline();
    if (!(starts = PyMem_Malloc(((size_t)data.size / MIN_RECORD_SIZE + 1) * sizeof(int64_t))))
        return PyErr_NoMemory();
    for (; data.size - position >= MIN_RECORD_SIZE; position += size) {
        size = record_size(data.at + position, data.size - position, begin + position);
        if (!size || (check && !has_valid_crc(data.at + position)))
            break;
        starts[found++] = position;
    }
    if (found && (positions = PyBytes_FromStringAndSize((const char *)starts, found * 8)) &&
        (heads = PyBytes_FromStringAndSize(NULL, found * HEAD_SIZE)) &&
        (times = PyBytes_FromStringAndSize(NULL, found * 8))) {
        for (Py_ssize_t number = 0; number < found; number++) {
            int64_t time = store_timestamp(data.at + starts[number]);
            memcpy(PyBytes_AsString(heads) + number * HEAD_SIZE, data.at + starts[number], HEAD_SIZE);
            memcpy(PyBytes_AsString(times) + number * 8, &time, 8);
        }
        result = Py_BuildValue("(OOOL)", positions, heads, times, (long long)position);
    }
    PyMem_Free(starts);
    Py_XDECREF(positions);
    Py_XDECREF(heads);
    Py_XDECREF(times);
    return result ? result : decline();
}

/* One queue in the run. `topic` is inside the buffer. */
typedef struct {
    Span topic;
    int32_t queue_id;
    uint32_t prefix; /* the hash of "topic#" */
    int64_t queue_offset;
    Py_ssize_t count;
    PyObject *units; /* strong */
    uint8_t *at;     /* inside `units` */
} Queue;

typedef struct {
    Py_ssize_t queue; /* -1 without a unit */
    int64_t physical_offset;
    int32_t size, tags_code;
} Row;

/* `table` has numbers of queues + 1, by hash; its size is a power of two and more than twice the number of records. */
typedef struct {
    Row *rows;
    Queue *queues;
    uint32_t *table, mask;
    Py_ssize_t row_count, queue_count, room;
    Columns entries;
} Run;

/* The queue of a name, a new one if there is none; NULL without memory. */
static Queue *queue_of(Run *run, Span topic, int32_t queue_id) {
    uint32_t prefix = java_hash(java_hash(0, topic.at, topic.size), (const uint8_t *)"#", 1), slot;
    for (slot = (prefix + (uint32_t)queue_id * 2654435761u) & run->mask; run->table[slot];
         slot = (slot + 1) & run->mask) {
        Queue *queue = &run->queues[run->table[slot] - 1];
        if (queue->queue_id == queue_id && queue->topic.size == topic.size &&
            !memcmp(queue->topic.at, topic.at, (size_t)topic.size))
            return queue;
    }
    if (run->queue_count == run->room) {
        Py_ssize_t room = 2 * run->room + 16;
        Queue *queues = PyMem_Realloc(run->queues, (size_t)room * sizeof(Queue));
        if (!queues) {
            PyErr_NoMemory();
            return NULL;
        }
        run->queues = queues;
        run->room = room;
    }
    run->queues[run->queue_count] = (Queue){topic, queue_id, prefix, 0, 0, NULL, NULL};
    run->table[slot] = (uint32_t)++run->queue_count;
    return &run->queues[run->queue_count - 1];
}

/* Whether nothing is left to Python: further queues, properties that a crash may have torn, texts to be replaced. */
static int is_usual(const Dispatched *record) {
    return !record->further.at && !memchr(record->properties.at, 0, (size_t)record->properties.size) &&
           is_utf8(record->tags.at, record->tags.size) && is_utf8(record->unique_key.at, record->unique_key.size) &&
           is_utf8(record->keys.at, record->keys.size);
}

/* Read one record, whose sizes agree; 0 with or without an exception if it is not of the usual form. */
static int read_row(Run *run, const uint8_t *at, int64_t size) {
    Dispatched record;
    Row *row = &run->rows[run->row_count++];
    Queue *queue;
    if (!find_dispatched(at, size, &record) || !is_usual(&record) ||
        !(queue = queue_of(run, record.topic, record.queue_id)))
        return 0;
    *row = (Row){-1, record.physical_offset, (int32_t)size, 0};
    if (!(record.sys_flag & PREPARED)) {
        if (!queue->count)
            queue->queue_offset = record.queue_offset;
        else if (record.queue_offset != queue->queue_offset + queue->count)
            return 0;
        queue->count++;
        row->queue = queue - run->queues;
        row->tags_code = (int32_t)java_hash(0, record.tags.at, record.tags.size);
    }
    return (record.sys_flag & TRANSACTION_MASK) == ROLLED_BACK ||
           (add_keys(&run->entries, record.unique_key, 0, queue->prefix, record.physical_offset,
                     record.store_timestamp) &&
            add_keys(&run->entries, record.keys, 1, queue->prefix, record.physical_offset,
                     record.store_timestamp));
}

/* The units by queue: a new dict, or NULL with or without an exception. */
static PyObject *units_of(Run *run, PyObject *due_topics) {
    PyObject *units = PyDict_New();
    for (Py_ssize_t number = 0; units && number < run->queue_count; number++) {
        Queue *queue = &run->queues[number];
        PyObject *topic, *entry = NULL, *name = NULL;
        if (!queue->count)
            continue;
        queue->units = PyBytes_FromStringAndSize(NULL, queue->count * UNIT_SIZE);
        topic = PyUnicode_DecodeUTF8((const char *)queue->topic.at, queue->topic.size, NULL);
        if (queue->units && topic && PySet_Contains(due_topics, topic) == 0 &&
            (name = Py_BuildValue("(Oi)", topic, (int)queue->queue_id)) &&
            (entry = Py_BuildValue("(LO)", (long long)queue->queue_offset, queue->units)) &&
            PyDict_SetItem(units, name, entry) == 0)
            queue->at = (uint8_t *)PyBytes_AsString(queue->units);
        else
            Py_CLEAR(units);
        Py_XDECREF(topic);
        Py_XDECREF(name);
        Py_XDECREF(entry);
    }
    for (Py_ssize_t number = 0; units && number < run->row_count; number++) {
        const Row *row = &run->rows[number];
        if (row->queue >= 0) {
            Queue *queue = &run->queues[row->queue];
            put_u64(queue->at, (uint64_t)row->physical_offset);
            put_u32(queue->at + 8, (uint32_t)row->size);
            put_u64(queue->at + 12, (uint64_t)(int64_t)row->tags_code);
            queue->at += UNIT_SIZE;
        }
    }
    return units;
}

/* Counterpart: read_run of rucola.store.dispatch.

(buffer, position, end, topics with due times) -> ({name: (queue offset, units)}, (hashes, physical offsets, store
timestamps)) | None if a record is damaged, is in a further queue, has zeros in its properties, or the queue offsets of
a queue are not consecutive */
PyObject *read_run(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    Run run = {0};
    int64_t position, end, size;
    PyObject *units = NULL, *columns = NULL, *result = NULL;
    (void)module;
    if (count != 4 || !take_i64(args[1], &position) || !take_i64(args[2], &end) || !PyAnySet_Check(args[3]) ||
        PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return decline();
    if (position >= 0 && position < end && end <= view.len && end - position < INT32_MAX) {
        size_t most = (size_t)((end - position) / MIN_RECORD_SIZE) + 1, slots = 4;
        while (slots < 2 * most + 2)
            slots *= 2;
        run.mask = (uint32_t)slots - 1;
        run.rows = PyMem_Malloc(most * sizeof(Row));
        run.table = PyMem_Calloc(slots, sizeof(uint32_t));
        if (!run.rows || !run.table)
            PyErr_NoMemory();
        else
            for (; end - position >= MIN_RECORD_SIZE; position += size) {
                const uint8_t *at = (const uint8_t *)view.buf + position;
                if (!(size = record_size(at, end - position, get_i64(at + 28))) || !read_row(&run, at, size))
                    break;
            }
        if (position == end && (units = units_of(&run, args[3])) && (columns = columns_of(&run.entries)))
            result = PyTuple_Pack(2, units, columns);
    }
    for (Py_ssize_t number = 0; number < run.queue_count; number++)
        Py_XDECREF(run.queues[number].units);
    PyMem_Free(run.rows);
    PyMem_Free(run.queues);
    PyMem_Free(run.table);
    release_columns(&run.entries);
    Py_XDECREF(units);
    Py_XDECREF(columns);
    PyBuffer_Release(&view);
    return result ? result : decline();
}
