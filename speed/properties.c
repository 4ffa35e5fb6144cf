/* Property strings and bodies of batches, as producers send them. */

#include "speed.h"

#define MAX_SEGMENTS 32

int take_names(PyObject *object, Names *names) {
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

int edit(Span string, Span end, const Names *names, uint8_t *out, Edited *edited) {
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

PyObject *text_or_none(Span value) {
    if (!value.at)
        Py_RETURN_NONE;
    return PyUnicode_DecodeUTF8((const char *)value.at, value.size, NULL);
}

/* Return the result of PropertyEditor.edit for a string of valid UTF-8; NULL if it is not of the usual form. */
static PyObject *edited_properties(Span string, Span end, PyObject *joined_names) {
    uint8_t small[1024], *out = small;
    Names names;
    Edited edited;
    PyObject *result = NULL;
    if (end.size < 1 || !take_names(joined_names, &names))
        return NULL;
    if (!string.size || (string.size == 1 && string.at[0] == 2) || string.size > INT32_MAX - end.size)
        return NULL; /* a message without properties takes another path; in a batch it does not */
    if ((size_t)(string.size + end.size) > sizeof small && !(out = PyMem_Malloc((size_t)(string.size + end.size))))
        return PyErr_NoMemory();
    if (edit(string, end, &names, out, &edited)) {
        result = PyTuple_New(1 + READ_NAMES);
        for (int number = 0; result && number <= READ_NAMES; number++) {
            PyObject *item = number ? text_or_none(edited.values[number - 1])
                                    : bytes_of(edited.stored);
            if (!item || PyTuple_SetItem(result, number, item) < 0)
                Py_CLEAR(result);
        }
    }
    if (out != small)
        PyMem_Free(out);
    return result;
}

/* Counterpart: PropertyEditor.edit of rucola.broker.send_properties. */
PyObject *edit_properties(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Span string, end;
    PyObject *result;
    (void)module;
    if (count != 3 || !PyUnicode_Check(args[0]) || !take_bytes(args[1], &end))
        return decline();
    string.at = (const uint8_t *)PyUnicode_AsUTF8AndSize(args[0], &string.size);
    result = string.at ? edited_properties(string, end, args[2]) : NULL;
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

/* Return the result of PropertyEditor.read_batch for a batch of at most `max_count` messages; NULL if it is unusual. */
static PyObject *batch_columns(Span data, Span end, PyObject *joined_names, int64_t max_count) {
    Own own;
    Names names;
    Py_ssize_t messages = 0, longest = 0, at, size;
    PyObject *lists[6] = {NULL}, *result = NULL;
    uint8_t *out = NULL;
    if (end.size < 1 || !take_names(joined_names, &names))
        return NULL;
    /* 1. Check all sizes and all text before anything is made. */
    for (at = 0; at < data.size; at += size, messages++) {
        size = batch_message(data.at + at, data.size - at, &own);
        if (!size || messages >= max_count || !is_utf8(own.properties.at, own.properties.size))
            return NULL;
        longest = own.properties.size > longest ? own.properties.size : longest;
    }
    /* 2. One pass over the messages, one list per column. */
    out = PyMem_Malloc((size_t)(longest + end.size));
    if (!out)
        return PyErr_NoMemory();
    for (int column = 0; column < 6; column++)
        if (!(lists[column] = PyList_New(messages)))
            goto done;
    at = 0;
    for (Py_ssize_t number = 0; number < messages; number++) {
        Edited edited;
        uint32_t code;
        at += batch_message(data.at + at, data.size - at, &own);
        if (!edit(own.properties, end, &names, out, &edited))
            goto done;
        code = edited.values[0].at ? java_hash(0, edited.values[0].at, edited.values[0].size) : 0;
        if (!put_item(lists[0], number, PyLong_FromLong(own.flag)) ||
            !put_item(lists[1], number, bytes_of(own.body)) ||
            !put_item(lists[2], number, bytes_of(edited.stored)) ||
            !put_item(lists[3], number, PyLong_FromLong((int32_t)code)) ||
            !put_item(lists[4], number, text_or_none(edited.values[1])) ||
            !put_item(lists[5], number, text_or_none(edited.values[2])))
            goto done;
    }
    result = PyTuple_New(6);
    for (int column = 0; result && column < 6; column++) {
        if (PyTuple_SetItem(result, column, lists[column]) < 0)
            Py_CLEAR(result);
        lists[column] = NULL;
    }
done:
    for (int column = 0; column < 6; column++)
        Py_XDECREF(lists[column]);
    PyMem_Free(out);
    return result;
}

/* Counterpart: PropertyEditor.read_batch of rucola.broker.send_properties, for batches of at most max count messages
without properties in the header that dispatch reads. */
PyObject *read_batch(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Span data, end;
    int64_t max_count;
    PyObject *columns;
    (void)module;
    if (count != 4 || !take_bytes(args[0], &data) || !take_bytes(args[1], &end) || !take_i64(args[3], &max_count))
        return decline();
    columns = batch_columns(data, end, args[2], max_count);
    return columns ? columns : decline();
}
