/* Dispatch: ConsumeQueue units and index entries of new records. */

#include "speed.h"

/* The fields of a DispatchRequest, by which their interned names are found in the state of the module. */
static int field_i64(PyObject *request, PyObject *name, int64_t *number) {
    PyObject *value = PyObject_GetAttr(request, name);
    int is_taken = value && take_i64(value, number);
    Py_XDECREF(value);
    return is_taken;
}

/* The units of one queue. All references are strong. */
typedef struct {
    PyObject *name; /* (topic, queue id) */
    PyObject *units, *tags_codes, *sizes;
    int64_t queue_offset, queue_id;
    Py_ssize_t count, done;
} Group;

typedef struct {
    Py_ssize_t group; /* -1 for a record that gets no unit */
    int64_t physical_offset, tags_code;
    int32_t size;
} Row;

typedef struct {
    Row *rows;
    Group *groups;
    Py_ssize_t group_count, room;
    PyObject *numbers; /* of groups, by name */
} Grouping;

/* Return the number of the group of a queue, which is created if there is none; -1 if that fails. */
static Py_ssize_t group_of(Grouping *all, PyObject *topic, int64_t queue_id, int64_t queue_offset) {
    PyObject *id = PyLong_FromLongLong(queue_id), *name = id ? PyTuple_Pack(2, topic, id) : NULL, *number;
    Py_ssize_t found = -1;
    Py_XDECREF(id);
    if (!name)
        return -1;
    number = PyDict_GetItemWithError(all->numbers, name); /* borrowed */
    if (number) {
        found = PyLong_AsSsize_t(number);
    } else if (!PyErr_Occurred()) {
        if (all->group_count == all->room) {
            Py_ssize_t room = all->room ? 2 * all->room : 8;
            Group *groups = PyMem_Realloc(all->groups, (size_t)room * sizeof(Group));
            if (!groups) {
                PyErr_NoMemory();
                goto done;
            }
            all->groups = groups;
            all->room = room;
        }
        number = PyLong_FromSsize_t(all->group_count);
        if (number && PyDict_SetItem(all->numbers, name, number) == 0) {
            found = all->group_count++;
            memset(&all->groups[found], 0, sizeof(Group));
            Py_INCREF(name);
            all->groups[found].name = name;
            all->groups[found].queue_id = queue_id;
            all->groups[found].queue_offset = queue_offset;
        }
        Py_XDECREF(number);
    }
done:
    Py_DECREF(name);
    return found;
}

/* Read the fields of all requests; return 0 if one is not of the usual form. */
static int read_rows(const State *names, PyObject *batch, Py_ssize_t count, PyObject *due_topics, Grouping *all) {
    PyObject *last_topic = NULL; /* strong */
    Py_ssize_t last = -1;
    int is_read = 0;
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *request = PyList_GetItem(batch, number), *topic;
        Row *row = &all->rows[number];
        int64_t sys_flag, queue_id, queue_offset, size;
        if (!request)
            goto done;
        Py_INCREF(request);
        topic = PyObject_GetAttr(request, names->topic);
        if (!topic || !PyUnicode_Check(topic) || !field_i64(request, names->sys_flag, &sys_flag) ||
            !field_i64(request, names->queue_id, &queue_id) ||
            !field_i64(request, names->queue_offset, &queue_offset) ||
            !field_i64(request, names->physical_offset, &row->physical_offset) ||
            !field_i64(request, names->size, &size) || size < INT32_MIN || size > INT32_MAX ||
            !field_i64(request, names->tags_code, &row->tags_code)) {
            Py_XDECREF(topic);
            Py_DECREF(request);
            goto done;
        }
        Py_DECREF(request);
        row->size = (int32_t)size;
        row->group = -1;
        if (!(sys_flag & PREPARED)) {
            /* A run of records of one queue needs no lookup; topics are compared by identity, as in Python. */
            if (last < 0 || topic != last_topic || queue_id != all->groups[last].queue_id) {
                if (topic != last_topic && PySet_Contains(due_topics, topic) != 0) {
                    Py_DECREF(topic);
                    goto done;
                }
                last = group_of(all, topic, queue_id, queue_offset);
                if (last < 0) {
                    Py_DECREF(topic);
                    goto done;
                }
                Py_XDECREF(last_topic);
                Py_INCREF(topic);
                last_topic = topic;
            }
            row->group = last;
            all->groups[last].count++;
        }
        Py_DECREF(topic);
    }
    is_read = 1;
done:
    Py_XDECREF(last_topic);
    return is_read;
}

/* Make the units of every group from the rows. */
static int fill_groups(Grouping *all, Py_ssize_t count) {
    for (Py_ssize_t number = 0; number < all->group_count; number++) {
        Group *group = &all->groups[number];
        group->units = PyBytes_FromStringAndSize(NULL, group->count * UNIT_SIZE);
        group->tags_codes = PyList_New(group->count);
        group->sizes = PyList_New(group->count);
        if (!group->units || !group->tags_codes || !group->sizes)
            return 0;
    }
    for (Py_ssize_t number = 0; number < count; number++) {
        const Row *row = &all->rows[number];
        if (row->group >= 0) {
            Group *group = &all->groups[row->group];
            uint8_t *unit = (uint8_t *)PyBytes_AsString(group->units) + group->done * UNIT_SIZE;
            put_u64(unit, (uint64_t)row->physical_offset);
            put_u32(unit + 8, (uint32_t)row->size);
            put_u64(unit + 12, (uint64_t)row->tags_code);
            if (!put_item(group->tags_codes, group->done, PyLong_FromLongLong(row->tags_code)) ||
                !put_item(group->sizes, group->done, PyLong_FromLong(row->size)))
                return 0;
            group->done++;
        }
    }
    return 1;
}

/* Counterpart: CommitLogDispatcher.units_by_queue. */
PyObject *units_by_queue(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Grouping all = {NULL, NULL, 0, 0, NULL};
    PyObject *result = NULL;
    Py_ssize_t requests;
    if (count != 2 || !PyList_Check(args[0]) || !PyAnySet_Check(args[1]))
        return decline();
    requests = PyList_Size(args[0]);
    all.rows = PyMem_Malloc((size_t)(requests ? requests : 1) * sizeof(Row));
    all.numbers = PyDict_New();
    if (!all.rows || !all.numbers) {
        PyErr_NoMemory();
    } else if (read_rows(PyModule_GetState(module), args[0], requests, args[1], &all) && fill_groups(&all, requests)) {
        result = PyDict_New();
        for (Py_ssize_t number = 0; result && number < all.group_count; number++) {
            Group *group = &all.groups[number];
            PyObject *first = PyLong_FromLongLong(group->queue_offset);
            PyObject *units = first ? PyTuple_Pack(4, first, group->units, group->tags_codes, group->sizes) : NULL;
            if (!units || PyDict_SetItem(result, group->name, units) < 0)
                Py_CLEAR(result);
            Py_XDECREF(first);
            Py_XDECREF(units);
        }
    }
    for (Py_ssize_t number = 0; number < all.group_count; number++) {
        Group *group = &all.groups[number];
        Py_XDECREF(group->name);
        Py_XDECREF(group->units);
        Py_XDECREF(group->tags_codes);
        Py_XDECREF(group->sizes);
    }
    PyMem_Free(all.rows);
    PyMem_Free(all.groups);
    Py_XDECREF(all.numbers);
    return result ? result : decline();
}

static int add_entry(Columns *columns, uint32_t hash, int64_t offset, int64_t time) {
    if (columns->count == columns->room) {
        Py_ssize_t room = 2 * columns->room + 64;
        void *hashes = PyMem_Realloc(columns->hashes, (size_t)room * 4), *offsets = NULL, *times = NULL;
        if (hashes)
            columns->hashes = hashes;
        if (hashes && (offsets = PyMem_Realloc(columns->offsets, (size_t)room * 8)))
            columns->offsets = offsets;
        if (offsets && (times = PyMem_Realloc(columns->times, (size_t)room * 8)))
            columns->times = times;
        if (!times) {
            PyErr_NoMemory();
            return 0;
        }
        columns->room = room;
    }
    /* The absolute value; -2^31 has none and counts as 0. */
    columns->hashes[columns->count] = (int32_t)(hash == 0x80000000u ? 0 : hash >> 31 ? 0u - hash : hash);
    columns->offsets[columns->count] = offset;
    columns->times[columns->count++] = time;
    return 1;
}

int add_keys(Columns *columns, Span keys, int has_words, uint32_t prefix, int64_t offset, int64_t time) {
    while (keys.size > 0) {
        const uint8_t *blank = has_words ? memchr(keys.at, ' ', (size_t)keys.size) : NULL;
        Py_ssize_t size = blank ? blank - keys.at : keys.size;
        if (size && !add_entry(columns, java_hash(prefix, keys.at, size), offset, time))
            return 0;
        keys.at += size + 1;
        keys.size -= size + 1;
    }
    return 1;
}

/* The same for a text or None; 0 also if it is no usual text. */
static int add_text(Columns *columns, PyObject *text, int has_words, uint32_t prefix, int64_t offset, int64_t time) {
    Span keys;
    if (text == Py_None)
        return 1;
    return PyUnicode_Check(text) && (keys.at = (const uint8_t *)PyUnicode_AsUTF8AndSize(text, &keys.size)) &&
           add_keys(columns, keys, has_words, prefix, offset, time);
}

PyObject *columns_of(const Columns *columns) {
    PyObject *hashes = PyBytes_FromStringAndSize((const char *)columns->hashes, columns->count * 4);
    PyObject *offsets = PyBytes_FromStringAndSize((const char *)columns->offsets, columns->count * 8);
    PyObject *times = PyBytes_FromStringAndSize((const char *)columns->times, columns->count * 8);
    PyObject *result = hashes && offsets && times ? PyTuple_Pack(3, hashes, offsets, times) : NULL;
    Py_XDECREF(hashes);
    Py_XDECREF(offsets);
    Py_XDECREF(times);
    return result;
}

void release_columns(Columns *columns) {
    PyMem_Free(columns->hashes);
    PyMem_Free(columns->offsets);
    PyMem_Free(columns->times);
}

/* Add the entries of one request; `topic` and `prefix` are those of the request before it, and become its own. */
static int add_request(const State *names, PyObject *request, Columns *columns, PyObject **topic, uint32_t *prefix) {
    PyObject *own_topic = NULL, *unique_key = NULL, *keys = NULL;
    int64_t sys_flag, offset, time;
    int is_added = 0;
    Span name;
    if (!(own_topic = PyObject_GetAttr(request, names->topic)) || !PyUnicode_Check(own_topic) ||
        !(unique_key = PyObject_GetAttr(request, names->unique_key)) ||
        !(keys = PyObject_GetAttr(request, names->keys)) || !field_i64(request, names->sys_flag, &sys_flag) ||
        !field_i64(request, names->physical_offset, &offset) || !field_i64(request, names->store_timestamp, &time))
        goto done;
    if (own_topic != *topic) {
        if (!(name.at = (const uint8_t *)PyUnicode_AsUTF8AndSize(own_topic, &name.size)))
            goto done;
        *prefix = java_hash(java_hash(0, name.at, name.size), (const uint8_t *)"#", 1);
        Py_INCREF(own_topic);
        Py_XDECREF(*topic);
        *topic = own_topic;
    }
    is_added = (sys_flag & TRANSACTION_MASK) == ROLLED_BACK ||
               (add_text(columns, unique_key, 0, *prefix, offset, time) &&
                add_text(columns, keys, 1, *prefix, offset, time));
done:
    Py_XDECREF(own_topic);
    Py_XDECREF(unique_key);
    Py_XDECREF(keys);
    return is_added;
}

/* Counterpart: index_entries_of of rucola.store.dispatch. */
PyObject *index_entries(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Columns columns = {NULL, NULL, NULL, 0, 0};
    PyObject *topic = NULL, *result = NULL;
    uint32_t prefix = 0;
    Py_ssize_t number, requests;
    if (count != 1 || !PyList_Check(args[0]))
        return decline();
    requests = PyList_Size(args[0]);
    for (number = 0; number < requests; number++) {
        PyObject *request = PyList_GetItem(args[0], number);
        int is_added;
        if (!request)
            break;
        Py_INCREF(request);
        is_added = add_request(PyModule_GetState(module), request, &columns, &topic, &prefix);
        Py_DECREF(request);
        if (!is_added)
            break;
    }
    if (number == requests)
        result = columns_of(&columns);
    Py_XDECREF(topic);
    release_columns(&columns);
    return result ? result : decline();
}
