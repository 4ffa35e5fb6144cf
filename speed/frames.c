/* Frames: the commands that one read of a connection has; the layout is described in rucola.protocol.command. */

#include "speed.h"

#define PREFIX_SIZE 8 /* length, serializer and header size */
#define SIZE_OF_SIZE 4

/* Counterpart: the loop of FrameDecoder.receive_data in rucola.protocol.frame, for JSON headers alone.

(data, max frame size, max header size) -> (headers, bodies, position of the incomplete frame or of the end) | None */
PyObject *split_frames(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Py_buffer data;
    int64_t max_frame_size, max_header_size;
    Py_ssize_t position = 0;
    PyObject *headers = NULL, *bodies = NULL, *result = NULL;
    (void)module;
    if (count != 3 || !take_i64(args[1], &max_frame_size) || !take_i64(args[2], &max_header_size) ||
        PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return decline();
    headers = PyList_New(0);
    bodies = PyList_New(0);
    while (headers && bodies && data.len - position >= SIZE_OF_SIZE) {
        const char *at = (const char *)data.buf + position;
        int64_t length = get_u32((const uint8_t *)at), header_size;
        PyObject *header, *body;
        int is_added;
        if (length < SIZE_OF_SIZE || length > max_frame_size)
            goto done;
        if (length > data.len - position - SIZE_OF_SIZE)
            break;
        header_size = get_u32((const uint8_t *)at + SIZE_OF_SIZE); /* the serializer, 0 for JSON, is its top byte */
        if (header_size > length - SIZE_OF_SIZE || header_size > max_header_size)
            goto done;
        header = PyBytes_FromStringAndSize(at + PREFIX_SIZE, (Py_ssize_t)header_size);
        body = PyBytes_FromStringAndSize(at + PREFIX_SIZE + header_size, (Py_ssize_t)(length - SIZE_OF_SIZE - header_size));
        is_added = header && body && PyList_Append(headers, header) == 0 && PyList_Append(bodies, body) == 0;
        Py_XDECREF(header);
        Py_XDECREF(body);
        if (!is_added)
            goto done;
        position += (Py_ssize_t)(SIZE_OF_SIZE + length);
    }
    if (headers && bodies)
        result = Py_BuildValue("(OOn)", headers, bodies, position);
done:
    Py_XDECREF(headers);
    Py_XDECREF(bodies);
    PyBuffer_Release(&data);
    return result ? result : decline();
}
