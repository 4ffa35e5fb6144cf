/* Property strings and bodies of batches, as producers send them. */

#include "speed.h"

#define MAX_SEGMENTS 32
#define EDITED_COLUMNS 5

/* The names that matter, as one bytes object: joined by 0x02, the read ones first, then those that need
more than editing. */
#define READ_NAMES 4 /* TAGS, UNIQ_KEY, KEYS, WAIT */
#define MAX_EDITED_NAMES 16
enum { TAGS, UNIQ_KEY, KEYS, WAIT };

typedef struct {
    int count;
    Span item[MAX_EDITED_NAMES];
} Names;

/* A property string in its stored form, and the values of the names that are read. */
typedef struct {
    Span stored;
    Span values[READ_NAMES];
} Edited;

static int take_names(PyObject *object, Names *names) {
    Span joined;
    if (!take_bytes(object, &joined))
        return 0;
    names->count = 0;
    while (names->count < MAX_EDITED_NAMES) {
        const uint8_t *separator = memchr(joined.at, 2, (size_t)joined.size);
        Py_ssize_t size = separator ? separator - joined.at : joined.size;
        names->item[names->count++] = (Span){joined.at, size};
        if (!separator)
            return names->count >= READ_NAMES;
        joined.at += size + 1;
        joined.size -= size + 1;
    }
    return 0;
}

static inline int is_equal(Span a, Span b) { return a.size == b.size && !memcmp(a.at, b.at, (size_t)a.size); }

static inline int number_of(const Names *names, Span name) {
    for (int number = 0; number < names->count; number++)
        if (is_equal(names->item[number], name))
            return number;
    return -1;
}

/* Write the stored form of `string` to `out`, which has room for string.size + end.size bytes, and find its values.

Return 0 for a string that is not of the usual form: a segment without 0x01, with an empty name or value, with a name
twice, or with a name that needs more than editing. `end` begins with 0x02. */
static int edit(Span string, Span end, const Names *names, uint8_t *out, Edited *edited) {
    Span others[MAX_SEGMENTS];
    int other_count = 0;
    uint8_t *at = out;
    memset(edited->values, 0, sizeof edited->values);
    if (string.size && string.at[string.size - 1] == 2)
        string.size--;
    for (Py_ssize_t left = string.size; left >= 0 && string.size;) {
        const uint8_t *begin = string.at + string.size - left, *separator = memchr(begin, 2, (size_t)left);
        Py_ssize_t size = separator ? separator - begin : left;
        const uint8_t *between = memchr(begin, 1, (size_t)size);
        Span name, value;
        int number;
        if (!between)
            return 0;
        name = (Span){begin, between - begin};
        value = (Span){between + 1, size - name.size - 1};
        if (!name.size || !value.size)
            return 0;
        number = number_of(names, name);
        if (number >= READ_NAMES || (number >= 0 && edited->values[number].at))
            return 0;
        if (number >= 0) {
            edited->values[number] = value;
        } else {
            for (int i = 0; i < other_count; i++)
                if (is_equal(others[i], name))
                    return 0;
            if (other_count == MAX_SEGMENTS)
                return 0;
            others[other_count++] = name;
        }
        if (number != WAIT) {
            if (at != out)
                *at++ = 2;
            memcpy(at, begin, (size_t)size);
            at += size;
        }
        left -= size + 1; /* -1 after the last segment */
    }
    if (at == out) {
        end.at++;
        end.size--;
    }
    memcpy(at, end.at, (size_t)end.size);
    edited->stored = (Span){out, at - out + end.size};
    return 1;
}

static PyObject *bytes_of(Span span) { return PyBytes_FromStringAndSize((const char *)span.at, span.size); }

/* Return a new str, or None; NULL if the value is no UTF-8. */
static PyObject *text_or_none(Span value) {
    if (!value.at)
        Py_RETURN_NONE;
    return PyUnicode_DecodeUTF8((const char *)value.at, value.size, NULL);
}

/* Add the edited form of a string to the columns. Return 0 if it is unusual, or after an error. */
static int add_edited(PyObject *const *columns, Span string, Span end, const Names *names, int64_t max_keys_size,
                      uint8_t *out) {
    Edited edited;
    Span tag;
    PyObject *items[EDITED_COLUMNS];
    int is_added = 1;
    if (!is_utf8(string.at, string.size) || !edit(string, end, names, out, &edited))
        return 0;
    tag = edited.values[TAGS];
    items[0] = bytes_of(edited.stored);
    items[1] = PyLong_FromLong(tag.at ? (int32_t)java_hash(0, tag.at, tag.size) : 0);
    for (int value = UNIQ_KEY; value < READ_NAMES; value++)
        items[1 + value] = text_or_none(edited.values[value]);
    for (int column = 0; column < EDITED_COLUMNS; column++)
        is_added = is_added && items[column];
    is_added = is_added && (items[1 + KEYS] == Py_None || PyUnicode_GetLength(items[1 + KEYS]) <= max_keys_size);
    for (int column = 0; column < EDITED_COLUMNS; column++) {
        is_added = is_added && PyList_Append(columns[column], items[column]) == 0;
        Py_XDECREF(items[column]);
    }
    return is_added;
}

/* Counterpart: PropertyEditor.edit of rucola.broker.send_properties.

(property strings, end, names, max size of KEYS) -> (stored strings, tags codes, unique keys, KEYS, WAIT)
of those before the first that is unusual | None */
PyObject *edit_properties(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Span end;
    Names names;
    int64_t max_keys_size;
    Py_ssize_t longest = 0, strings;
    PyObject *columns[EDITED_COLUMNS] = {NULL}, *result = NULL;
    uint8_t *out = NULL;
    (void)module;
    if (count != 4 || !PyList_Check(args[0]) || !take_bytes(args[1], &end) || end.size < 1 ||
        !take_names(args[2], &names) || !take_i64(args[3], &max_keys_size))
        return decline();
    strings = PyList_Size(args[0]);
    for (Py_ssize_t number = 0; number < strings; number++) {
        Span string;
        if (!take_bytes(PyList_GetItem(args[0], number), &string) || string.size > INT32_MAX - end.size)
            return decline();
        longest = string.size > longest ? string.size : longest;
    }
    if (!(out = PyMem_Malloc((size_t)(longest + end.size))))
        return PyErr_NoMemory();
    for (int column = 0; column < EDITED_COLUMNS; column++)
        if (!(columns[column] = PyList_New(0)))
            goto done;
    for (Py_ssize_t number = 0; number < strings; number++) {
        Span string;
        if (!take_bytes(PyList_GetItem(args[0], number), &string) ||
            !add_edited(columns, string, end, &names, max_keys_size, out))
            break;
    }
    if (!PyErr_Occurred())
        result = PyTuple_Pack(EDITED_COLUMNS, columns[0], columns[1], columns[2], columns[3], columns[4]);
done:
    for (int column = 0; column < EDITED_COLUMNS; column++)
        Py_XDECREF(columns[column]);
    PyMem_Free(out);
    return result ? result : decline();
}

#define HEAD_SIZE 20 /* of a message in a batch, see rucola.message.batch */

Py_ssize_t batch_message(const uint8_t *at, Py_ssize_t left, Own *own) {
    int32_t size, body_size;
    if (left < HEAD_SIZE + 2)
        return 0;
    size = get_i32(at);
    body_size = get_i32(at + 16);
    if (size < HEAD_SIZE + 2 || size > left || body_size < 0 || body_size > size - HEAD_SIZE - 2)
        return 0;
    own->body = (Span){at + HEAD_SIZE, body_size};
    own->properties = (Span){at + HEAD_SIZE + body_size + 2, size - HEAD_SIZE - 2 - body_size};
    own->flag = get_i32(at + 12);
    return get_u16(own->properties.at - 2) == own->properties.size ? size : 0;
}

/* Counterpart: decode_part of rucola.message.batch.

(body of a batch, max count) -> (flags, bodies, property strings), if it is all valid | None */
PyObject *split_batch(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Span data;
    Own own;
    int64_t max_count;
    Py_ssize_t messages = 0, at, size;
    PyObject *lists[3] = {NULL}, *result = NULL;
    (void)module;
    if (count != 2 || !take_bytes(args[0], &data) || !take_i64(args[1], &max_count))
        return decline();
    for (at = 0; at < data.size; at += size, messages++)
        if (!(size = batch_message(data.at + at, data.size - at, &own)) || messages >= max_count)
            return decline();
    for (int list = 0; list < 3; list++)
        if (!(lists[list] = PyList_New(messages)))
            goto done;
    at = 0;
    for (Py_ssize_t number = 0; number < messages; number++) {
        at += batch_message(data.at + at, data.size - at, &own);
        if (!put_item(lists[0], number, PyLong_FromLong(own.flag)) || !put_item(lists[1], number, bytes_of(own.body)) ||
            !put_item(lists[2], number, bytes_of(own.properties)))
            goto done;
    }
    result = PyTuple_Pack(3, lists[0], lists[1], lists[2]);
done:
    for (int list = 0; list < 3; list++)
        Py_XDECREF(lists[list]);
    return result ? result : decline();
}
