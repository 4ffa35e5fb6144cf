/* Columns: bodies and properties of many records at once, for scans of the log and for Spark. The interpreter lock is
released: buffers are held, and only memory of the C library is used meanwhile. */

#include "speed.h"

#include <stdlib.h>

/* Ranges of one buffer, given as two arrays of int64; checked to be inside. */
typedef struct {
    Py_buffer data, begins, ends;
    Py_ssize_t count;
} Ranges;

static void release_ranges(Ranges *ranges) {
    PyBuffer_Release(&ranges->data);
    PyBuffer_Release(&ranges->begins);
    PyBuffer_Release(&ranges->ends);
}

static int take_ranges(PyObject *const *args, Ranges *ranges) {
    memset(ranges, 0, sizeof *ranges); /* releasing what was not taken does nothing */
    if (PyObject_GetBuffer(args[0], &ranges->data, PyBUF_SIMPLE) < 0 ||
        PyObject_GetBuffer(args[1], &ranges->begins, PyBUF_SIMPLE) < 0 ||
        PyObject_GetBuffer(args[2], &ranges->ends, PyBUF_SIMPLE) < 0 || ranges->begins.len != ranges->ends.len ||
        ranges->begins.len % 8 || ranges->begins.len / 8 > INT32_MAX - 1) {
        release_ranges(ranges);
        return 0;
    }
    ranges->count = ranges->begins.len / 8;
    return 1;
}

/* Find a range; 0 if it is not inside the data. Positions are read once, so that a change has no effect. */
static int range_at(const Ranges *ranges, Py_ssize_t number, Span *span) {
    int64_t begin, end;
    memcpy(&begin, (const uint8_t *)ranges->begins.buf + 8 * number, 8);
    memcpy(&end, (const uint8_t *)ranges->ends.buf + 8 * number, 8);
    if (begin < 0 || end < begin || end > ranges->data.len)
        return 0;
    *span = (Span){(const uint8_t *)ranges->data.buf + begin, (Py_ssize_t)(end - begin)};
    return 1;
}

/* Counterpart: body_crcs of rucola.message.record. (data, begins, ends) -> array of uint32, as bytes | None */
PyObject *crc32_of_ranges(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Ranges ranges;
    PyObject *result;
    uint8_t *out;
    int is_inside = 1;
    (void)module;
    if (count != 3 || !take_ranges(args, &ranges))
        return decline();
    result = PyBytes_FromStringAndSize(NULL, 4 * ranges.count);
    if (result) {
        out = (uint8_t *)PyBytes_AsString(result);
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t number = 0; is_inside && number < ranges.count; number++) {
            Span body;
            if ((is_inside = range_at(&ranges, number, &body))) {
                uint32_t crc = crc32_of(body.at, (size_t)body.size) & 0x7FFFFFFF;
                memcpy(out + 4 * number, &crc, 4);
            }
        }
        Py_END_ALLOW_THREADS
        if (!is_inside)
            Py_CLEAR(result);
    }
    release_ranges(&ranges);
    return result ? result : decline();
}

#define MAX_NAMES 64
#define MAX_PAIRS 64 /* of one record */

typedef struct {
    Span value;
    int32_t code;
} Pair;

typedef struct {
    Span names[MAX_NAMES]; /* inside the data */
    int32_t name_count;
    Pair *pairs;
    int64_t pair_count, room, value_size;
    int32_t *offsets;   /* of the pairs of each row */
    int64_t *irregular; /* rows */
    Py_ssize_t irregular_count;
} Parsed;

/* Return the code of a name, a new one if it is new; -1 if there are too many. `guess` is probably the right one. */
static int32_t code_of(Parsed *parsed, Span name, int32_t guess) {
    for (int32_t tried = -1; tried < parsed->name_count; tried++) {
        int32_t code = tried < 0 ? guess : tried;
        if (code < parsed->name_count && parsed->names[code].size == name.size &&
            !memcmp(parsed->names[code].at, name.at, (size_t)name.size))
            return code;
    }
    if (parsed->name_count == MAX_NAMES)
        return -1;
    parsed->names[parsed->name_count] = name;
    return parsed->name_count++;
}

/* Add the pairs of one string. Return 1, 0 if it is irregular, and -1 if the batch must be left to Python. */
static int parse_row(Parsed *parsed, Span row) {
    uint64_t seen = 0; /* one bit for each code */
    int64_t first = parsed->pair_count, value_size = 0;
    Py_ssize_t left;
    if (row.size && row.at[row.size - 1] == 2)
        row.size--;
    if (!row.size)
        return 1;
    if (!is_utf8(row.at, row.size))
        return 0;
    for (left = row.size; left >= 0;) {
        const uint8_t *begin = row.at + row.size - left, *end = memchr(begin, 2, (size_t)left), *between;
        Py_ssize_t size = end ? end - begin : left;
        int64_t number = parsed->pair_count - first;
        int32_t code;
        between = memchr(begin, 1, (size_t)size);
        if (!between || between == begin || between == begin + size - 1 || number == MAX_PAIRS)
            goto irregular;
        /* Most records have the names of the first, in the same order. */
        code = code_of(parsed, (Span){begin, between - begin}, (int32_t)number);
        if (code < 0)
            return -1;
        if (seen >> code & 1)
            goto irregular;
        seen |= (uint64_t)1 << code;
        if (parsed->pair_count == parsed->room) {
            int64_t room = 2 * parsed->room + 1024;
            Pair *pairs = realloc(parsed->pairs, (size_t)room * sizeof(Pair));
            if (!pairs)
                return -1;
            parsed->pairs = pairs;
            parsed->room = room;
        }
        parsed->pairs[parsed->pair_count++] = (Pair){{between + 1, begin + size - between - 1}, code};
        value_size += begin + size - between - 1;
        left -= size + 1; /* -1 after the last segment */
    }
    parsed->value_size += value_size;
    return parsed->value_size <= INT32_MAX && parsed->pair_count <= INT32_MAX ? 1 : -1;
irregular:
    parsed->pair_count = first;
    return 0;
}

static int parse_rows(const Ranges *ranges, Parsed *parsed) {
    parsed->offsets = malloc((size_t)(ranges->count + 1) * 4);
    parsed->irregular = malloc((size_t)(ranges->count + 1) * 8);
    if (!parsed->offsets || !parsed->irregular)
        return 0;
    parsed->offsets[0] = 0;
    for (Py_ssize_t number = 0; number < ranges->count; number++) {
        Span row;
        int is_regular;
        if (!range_at(ranges, number, &row) || (is_regular = parse_row(parsed, row)) < 0)
            return 0;
        if (!is_regular)
            parsed->irregular[parsed->irregular_count++] = number;
        parsed->offsets[number + 1] = (int32_t)parsed->pair_count;
    }
    return 1;
}

static void copy_pairs(const Parsed *parsed, uint8_t *codes, uint8_t *offsets, uint8_t *values) {
    int32_t offset = 0;
    memcpy(offsets, &offset, 4);
    for (int64_t number = 0; number < parsed->pair_count; number++) {
        Pair pair = parsed->pairs[number];
        memcpy(codes + 4 * number, &pair.code, 4);
        memcpy(values + offset, pair.value.at, (size_t)pair.value.size);
        offset += (int32_t)pair.value.size;
        memcpy(offsets + 4 * (number + 1), &offset, 4);
    }
}

static PyObject *new_bytes(const void *data, int64_t size) {
    return PyBytes_FromStringAndSize(data, (Py_ssize_t)size);
}

/* Counterpart: parse_properties of rucola.spark.source.property_columns.

(data, begins, ends) -> (offsets of the pairs of each row: int32, names, code of the name of each pair: int32, offsets of
its value: int32, values, irregular rows: int64), arrays as bytes | None */
PyObject *parse_properties(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Ranges ranges;
    Parsed parsed;
    PyObject *items[6] = {NULL}, *result = NULL;
    int is_parsed;
    (void)module;
    if (count != 3 || !take_ranges(args, &ranges))
        return decline();
    memset(&parsed, 0, sizeof parsed);
    Py_BEGIN_ALLOW_THREADS
    is_parsed = parse_rows(&ranges, &parsed);
    Py_END_ALLOW_THREADS
    if (is_parsed) {
        int is_made = 1;
        items[0] = new_bytes(parsed.offsets, 4 * (ranges.count + 1));
        items[1] = PyList_New(parsed.name_count);
        items[2] = new_bytes(NULL, 4 * parsed.pair_count);
        items[3] = new_bytes(NULL, 4 * (parsed.pair_count + 1));
        items[4] = new_bytes(NULL, parsed.value_size);
        items[5] = new_bytes(parsed.irregular, 8 * parsed.irregular_count);
        for (int32_t code = 0; items[1] && is_made && code < parsed.name_count; code++)
            is_made = put_item(items[1], code, new_bytes(parsed.names[code].at, parsed.names[code].size));
        for (int number = 0; number < 6; number++)
            is_made = is_made && items[number];
        if (is_made) {
            uint8_t *codes = (uint8_t *)PyBytes_AsString(items[2]);
            uint8_t *offsets = (uint8_t *)PyBytes_AsString(items[3]), *values = (uint8_t *)PyBytes_AsString(items[4]);
            Py_BEGIN_ALLOW_THREADS
            copy_pairs(&parsed, codes, offsets, values);
            Py_END_ALLOW_THREADS
            result = PyTuple_Pack(6, items[0], items[1], items[2], items[3], items[4], items[5]);
        }
        for (int number = 0; number < 6; number++)
            Py_XDECREF(items[number]);
    }
    free(parsed.pairs);
    free(parsed.offsets);
    free(parsed.irregular);
    release_ranges(&ranges);
    return result ? result : decline();
}
