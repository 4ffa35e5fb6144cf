/* rucola._speed: the work of Python functions that run for every message, in C.

Each function has a counterpart in Python with the same contract, which it names; `rucola.speed` says how they are
chosen. The rules for all of them:

- No state but constants, no files, no sockets, no clocks: arguments in, a result out.
- Python decides what is an error. A function returns None for input that is not of the usual form, whatever the reason;
  the Python counterpart then does the work, or raises the exception that says why not.
- A number read from input is compared with the bytes that are there before it is used as a position or size.
- Pointers into an object are held only together with a reference or an exported buffer of it. Lists are read by
  functions that check the position, since a caller may change them.
- Only the limited API of Python 3.11, so that one build serves all later versions.
*/

#include "speed.h"

PyObject *decline(void) {
    if (PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_MemoryError))
            return NULL;
        PyErr_Clear();
    }
    Py_RETURN_NONE;
}

int take_bytes(PyObject *object, Span *span) {
    if (!PyBytes_Check(object))
        return 0;
    span->at = (const uint8_t *)PyBytes_AsString(object);
    span->size = PyBytes_Size(object);
    return 1;
}

int take_i64(PyObject *object, int64_t *number) {
    int overflow;
    if (!PyLong_Check(object))
        return 0;
    *number = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow;
}

int take_i32(PyObject *object, int32_t *number) {
    int64_t wide;
    if (!take_i64(object, &wide) || wide < INT32_MIN || wide > INT32_MAX)
        return 0;
    *number = (int32_t)wide;
    return 1;
}

static PyObject *crc32(PyObject *module, PyObject *data) {
    Py_buffer view;
    uint32_t crc;
    (void)module;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    crc = crc32_of(view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

#define FAST(name, text) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, PyDoc_STR(text)}

static PyMethodDef methods[] = {
    {"crc32", crc32, METH_O, PyDoc_STR("crc32(data) -> int: zlib.crc32, which every encoded body passes through.")},
    FAST(split_frames, "split_frames(data, max frame size, max header size) -> (headers, bodies, end) | None"),
    FAST(read_sends,
         "read_sends(data, max frame size, max header size, max requests, max body size, max messages of a batch)"
         " -> (opaques, numbers of messages, ends, topics, queue ids, flags, sysFlags, born timestamps,"
         " reconsume times, properties, bodies) | None"),
    FAST(read_fetch,
         "read_fetch(data, max frame size, max header size) -> (code, opaque, UsualFetch or UsualPop, end, credentials)"
         " | None"),
    FAST(format_sends,
         "format_sends(form, opaques, numbers of messages, queue ids, queue offsets, physical offsets) -> bytes | None"),
    FAST(edit_properties,
         "edit_properties(strings, end, names, max size of KEYS)"
         " -> (stored strings, tags codes, unique keys, KEYS, WAIT) | None"),
    FAST(split_batch, "split_batch(body, max count) -> (flags, bodies, property strings) | None"),
    FAST(encode_record,
         "encode_record(topic field, queue id, flag, body, properties, sysFlag, born timestamp, born host,"
         " store timestamp, store host, reconsume times, prepared transaction offset, queue offset, physical offset)"
         " -> record | None"),
    FAST(encode_records,
         "encode_records(topics, queue ids, flags, bodies, properties, sysFlags, born timestamps, reconsume times,"
         " queue offsets, born host, store timestamp, store host, physical offset)"
         " -> (records, physical offsets, sizes) | None"),
    FAST(units_by_queue, "units_by_queue(requests, due-time topics) -> {(topic, queue id): units} | None"),
    FAST(index_entries, "index_entries(requests) -> (hashes, physical offsets, store timestamps) | None"),
    FAST(put_entries,
         "put_entries(map, slot count, number, begin timestamp, hashes, physical offsets, store timestamps)"
         " -> new slots | None"),
    FAST(select_entries,
         "select_entries(map, slot count, next number, begin timestamp, hash, max count, begin, end, before)"
         " -> physical offsets | None"),
    FAST(read_records, "read_records(map or descriptor, begin, written, physical offsets, max bytes) -> records | None"),
    FAST(read_units,
         "read_units(units, queue offset, map, begin, written, max count, max bytes, accepts)"
         " -> (records, their number, units read) | None"),
    FAST(decode_records, "decode_records(records, max count) -> [fields of MessageExt] | None"),
    FAST(read_requests, "read_requests(buffer, position, end) -> [fields of DispatchRequest] | None"),
    FAST(scan_records,
         "scan_records(data, physical offset, check) -> (positions, heads, store timestamps, end) | None"),
    FAST(read_run,
         "read_run(buffer, position, end, due-time topics)"
         " -> ({(topic, queue id): (queue offset, units)}, (hashes, physical offsets, store timestamps)) | None"),
    FAST(crc32_of_ranges, "crc32_of_ranges(data, begins, ends) -> CRCs of 31 bits | None"),
    FAST(parse_properties,
         "parse_properties(data, begins, ends) -> (offsets, names, codes, value offsets, values, irregular rows) | None"),
    {NULL, NULL, 0, NULL},
};

/* Call `visit(name of the field, field)` for every field of the state. */
#define FIELDS(visit)                                                                                                  \
    visit("topic", topic) visit("queue_id", queue_id) visit("queue_offset", queue_offset)                              \
        visit("physical_offset", physical_offset) visit("size", size) visit("store_timestamp", store_timestamp)        \
            visit("sys_flag", sys_flag) visit("tags_code", tags_code) visit("unique_key", unique_key)                  \
                visit("keys", keys)

static int execute(PyObject *module) {
    State *state = PyModule_GetState(module);
    crc32_prepare();
#define INTERN(text, field)                                                                                            \
    if (!(state->field = PyUnicode_InternFromString(text)))                                                            \
        return -1;
    FIELDS(INTERN)
    return PyModule_AddIntConstant(module, "INTERFACE", RUCOLA_SPEED_INTERFACE);
}

static int clear(PyObject *module) {
    State *state = PyModule_GetState(module);
#define CLEAR(text, field) Py_CLEAR(state->field);
    if (state) {
        FIELDS(CLEAR)
    }
    return 0;
}

static void free_module(void *module) { clear(module); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "rucola._speed",
    .m_doc = PyDoc_STR("The functions that run for every message, in C; see rucola.speed."),
    .m_size = sizeof(State),
    .m_methods = methods,
    .m_slots = slots,
    .m_clear = clear,
    .m_free = free_module,
};

PyMODINIT_FUNC PyInit__speed(void) { return PyModuleDef_Init(&definition); }
