/* rucola._speed: the work of Python functions that run for every message, in C.

Each function has a counterpart in Python with the same contract, which it names; `rucola.speed` says how they are
chosen. The rules for all of them:

- No state, no files, no sockets, no clocks: arguments in, a result out.
- Python decides what is an error. A function returns None for input that is not of the usual form, whatever the reason;
  the Python counterpart then does the work, or raises the exception that says why not.
- A number read from input is compared with the bytes that are there before it is used as a position or size.
- While pointers into lists or objects are held, no Python code can run: arguments are checked to be exact lists, bytes
  and ints, whose functions call nothing back.
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
    FAST(edit_properties, "edit_properties(text, end, names) -> (stored, tag, unique key, KEYS, WAIT) | None"),
    FAST(read_batch, "read_batch(body, end, names) -> (flags, bodies, properties, tags codes, unique keys, KEYS) | None"),
    FAST(encode_records,
         "encode_records(topic field, queue id, flags, bodies, properties, origin, queue offset, physical offset)"
         " -> (records, sizes) | None"),
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) {
    crc32_prepare();
    return PyModule_AddIntConstant(module, "INTERFACE", RUCOLA_SPEED_INTERFACE);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "rucola._speed",
    .m_doc = PyDoc_STR("The functions that run for every message, in C; see rucola.speed."),
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__speed(void) { return PyModuleDef_Init(&definition); }
