/* Sends of messages and batches: from the bytes of a read to those of records and responses. */

#include "requests.h"

#define NOT_DISPATCHED 0x4    /* sysFlag of prepared and rolled-back messages */
#define TRANSACTION_MASK 0xC  /* of those and committed ones */
#define MAX_TOPIC_SIZE 255
#define MAX_DIGITS 20
#define ID_DIGITS 16 /* of a physical offset in an offsetMsgId */
#define FORM_PARTS 6

/* A bytearray that grows at its end, which spares the copy at the end: `size` of its `room` bytes are used. */
typedef struct {
    PyObject *array;
    uint8_t *at;
    Py_ssize_t size, room;
} Bytes;

/* What one call encodes with, and what it has encoded. */
typedef struct {
    const State *names;
    Span end;
    Names properties;
    Span form[FORM_PARTS]; /* of a response: before msgId, of each id, before queueId, queueOffset, opaque, and the end */
    Origin origin;
    int64_t max_body_size, max_keys_size, max_messages, physical_offset, room;
    PyObject *topics, *offsets; /* {name: TopicConfig}, {(topic, queue id): next queue offset}; not changed */
    PyObject *advanced;         /* the next queue offsets behind the encoded messages */
    PyObject *requests;         /* the fields of their DispatchRequests */
    Bytes records, responses, text;
} Run;

#define FIRST_RESPONSES 512 /* bytes for one or two */


/* Make room for more bytes and return where they go; NULL and MemoryError if there is none. */
static uint8_t *grow(Bytes *bytes, Py_ssize_t size) {
    if (size > bytes->room - bytes->size) {
        Py_ssize_t room = 2 * bytes->room + size;
        if (!bytes->array)
            bytes->array = PyByteArray_FromStringAndSize(NULL, room);
        else if (PyByteArray_Resize(bytes->array, room) < 0)
            return NULL;
        if (!bytes->array)
            return NULL;
        bytes->at = (uint8_t *)PyByteArray_AsString(bytes->array);
        bytes->room = room;
    }
    return bytes->at + bytes->size;
}

static uint8_t *put_span(uint8_t *at, Span span) {
    memcpy(at, span.at, (size_t)span.size);
    return at + span.size;
}

static uint8_t *put_decimal(uint8_t *at, int64_t number) {
    uint8_t digits[MAX_DIGITS];
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    int count = 0;
    do
        digits[count++] = (uint8_t)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0)
        *at++ = '-';
    while (count)
        *at++ = digits[--count];
    return at;
}

static uint8_t *put_hexadecimal(uint8_t *at, uint64_t number) {
    for (int shift = 60; shift >= 0; shift -= 4)
        *at++ = (uint8_t) "0123456789ABCDEF"[number >> shift & 15];
    return at;
}

/* A response is added in three steps, each of which returns 0 after MemoryError: its begin, the offsetMsgId of each
message, joined by commas, and its end. */
static int begin_response(Run *run) {
    uint8_t *at = grow(&run->responses, 8 + run->form[0].size);
    if (at)
        run->responses.size = put_span(at + 8, run->form[0]) - run->responses.at;
    return at != NULL;
}

static int add_id(Run *run, int is_first) {
    uint8_t *at = grow(&run->responses, 1 + run->form[1].size + ID_DIGITS);
    if (!at)
        return 0;
    if (!is_first)
        *at++ = ',';
    at = put_hexadecimal(put_span(at, run->form[1]), (uint64_t)run->physical_offset);
    run->responses.size = at - run->responses.at;
    return 1;
}

static int end_response(Run *run, Py_ssize_t begin, int64_t queue_id, int64_t queue_offset, int64_t opaque) {
    const Span *form = run->form;
    uint8_t *at = grow(&run->responses, form[2].size + form[3].size + form[4].size + form[5].size + 3 * MAX_DIGITS);
    Py_ssize_t header_size;
    if (!at)
        return 0;
    at = put_decimal(put_span(at, form[2]), queue_id);
    at = put_decimal(put_span(at, form[3]), queue_offset);
    at = put_decimal(put_span(at, form[4]), opaque);
    at = put_span(at, form[5]);
    run->responses.size = at - run->responses.at;
    header_size = run->responses.size - begin - 8;
    put_u32(run->responses.at + begin, (uint32_t)(4 + header_size));
    put_u32(run->responses.at + begin + 4, (uint32_t)header_size);
    return 1;
}

/* Return a new reference to the topic, if it exists, takes messages with one tag, and has this queue; otherwise NULL. */
static PyObject *topic_of(const Run *run, Span name, int64_t queue_id) {
    PyObject *topic, *config, *count = NULL, *filter = NULL;
    int64_t write_queues;
    int is_open;
    if (name.size > MAX_TOPIC_SIZE || name.at[0] == '%' ||
        !(topic = PyUnicode_FromStringAndSize((const char *)name.at, name.size)))
        return NULL;
    config = PyDict_GetItemWithError(run->topics, topic);
    is_open = config && (count = PyObject_GetAttr(config, run->names->write_queue_nums)) &&
              take_i64(count, &write_queues) && queue_id >= 0 && queue_id < write_queues &&
              (filter = PyObject_GetAttr(config, run->names->topic_filter_type)) && PyUnicode_Check(filter) &&
              PyUnicode_CompareWithASCIIString(filter, "SINGLE_TAG") == 0;
    Py_XDECREF(count);
    Py_XDECREF(filter);
    if (is_open)
        PyUnicode_InternInPlace(&topic); /* only names that exist: Python 3.12 keeps interned strings for ever */
    else
        Py_CLEAR(topic);
    return topic;
}

/* Find the next queue offset of a queue that has messages. */
static int next_offset(const Run *run, PyObject *queue, int64_t *offset) {
    PyObject *number = PyDict_GetItemWithError(run->advanced, queue);
    if (!number && !PyErr_Occurred())
        number = PyDict_GetItemWithError(run->offsets, queue);
    return number && take_i64(number, offset) && *offset > 0;
}

static int is_hex_below_0x80(const uint8_t *digits, uint8_t *byte) {
    int low = digits[3] <= '9' ? digits[3] - '0' : (digits[3] | 0x20) - 'a' + 10;
    int is_digit = (digits[3] >= '0' && digits[3] <= '9') || ((digits[3] | 0x20) >= 'a' && (digits[3] | 0x20) <= 'f');
    if (!is_digit || digits[0] != '0' || digits[1] != '0' || digits[2] < '0' || digits[2] > '7')
        return 0;
    *byte = (uint8_t)((digits[2] - '0') << 4 | low);
    return 1;
}

/* Replace the escapes of a raw property string. Returns its size; -1 for other escapes than those of ASCII. */
static Py_ssize_t unescape(Span raw, uint8_t *out) {
    uint8_t *at = out;
    for (Py_ssize_t i = 0; i < raw.size; i++) {
        if (raw.at[i] != '\\') {
            *at++ = raw.at[i];
        } else if (raw.at[i + 1] == '"' || raw.at[i + 1] == '\\' || raw.at[i + 1] == '/') {
            *at++ = raw.at[++i];
        } else if (raw.at[i + 1] == 'u' && raw.size - i >= 6 && is_hex_below_0x80(raw.at + i + 2, at)) {
            at++;
            i += 5;
        } else {
            return -1;
        }
    }
    return at - out;
}

/* Add a record, the fields of its DispatchRequest, and its id. `own` has the properties as they were sent. Returns 0 if
something is unusual, or after an error. */
static int add_message(Run *run, const Common *common, Shared *shared, Own *own, PyObject *topic,
                       int64_t queue_offset, int is_first) {
    PyObject *key = NULL, *keys = NULL, *stored = NULL, *request = NULL;
    Edited edited;
    uint8_t *at;
    int64_t size;
    int is_added = 0;
    run->text.size = 0;
    if (own->properties.size > MAX_PROPERTIES_SIZE || !is_utf8(own->properties.at, own->properties.size) ||
        !(at = grow(&run->text, own->properties.size + run->end.size)) ||
        !edit(own->properties, run->end, &run->properties, at, &edited) || !add_id(run, is_first))
        return 0;
    own->properties = edited.stored;
    size = encoded_size(shared, own);
    if (!size || size > run->room || !(at = grow(&run->records, (Py_ssize_t)size)))
        return 0;
    key = text_or_none(edited.values[UNIQ_KEY]);
    keys = text_or_none(edited.values[KEYS]);
    stored = PyBytes_FromStringAndSize((const char *)edited.stored.at, edited.stored.size);
    if (key && keys && stored && (keys == Py_None || PyUnicode_GetLength(keys) <= run->max_keys_size)) {
        Span tag = edited.values[TAGS];
        request = Py_BuildValue("(OLLLLLLlOOO)", topic, (long long)common->queue_id, (long long)queue_offset,
                                (long long)run->physical_offset, (long long)size,
                                (long long)run->origin.store_timestamp, (long long)common->sys_flag,
                                tag.at ? (long)(int32_t)java_hash(0, tag.at, tag.size) : 0L, key, keys, stored);
        is_added = request && PyList_Append(run->requests, request) == 0;
    }
    if (is_added) {
        write_record(at, shared, own, queue_offset, run->physical_offset);
        run->records.size += (Py_ssize_t)size;
        run->room -= size;
        run->physical_offset += size;
    }
    Py_XDECREF(key);
    Py_XDECREF(keys);
    Py_XDECREF(stored);
    Py_XDECREF(request);
    return is_added;
}

/* Add the message of a send; one without properties is unusual. */
static int add_single(Run *run, const Common *common, Shared *shared, Span raw, Span body, PyObject *topic,
                      int64_t queue_offset) {
    uint8_t small[1024], *text = small;
    Own own = {body, {NULL, 0}, (int32_t)common->flag};
    int is_added;
    if (raw.size > (Py_ssize_t)sizeof small && !(text = PyMem_Malloc((size_t)raw.size))) {
        PyErr_NoMemory();
        return 0;
    }
    own.properties = (Span){text, unescape(raw, text)};
    is_added = own.properties.size > 0 && !(own.properties.size == 1 && text[0] == 2) &&
               add_message(run, common, shared, &own, topic, queue_offset, 1);
    if (text != small)
        PyMem_Free(text);
    return is_added;
}

/* Whether the properties of a batch add nothing to those of its messages. */
static int adds_nothing(Span raw) {
    return !raw.size || is_text(raw, "WAIT\\u0001true") || is_text(raw, "WAIT\\u0001true\\u0002");
}

/* Add the messages of a batch. Returns the next queue offset; 0 if something is unusual, or after an error. */
static int64_t add_batch(Run *run, const Common *common, Shared *shared, Span batch, PyObject *topic,
                         int64_t queue_offset) {
    int64_t first = queue_offset;
    for (Py_ssize_t at = 0, size; at < batch.size; at += size, queue_offset++) {
        Own own;
        size = batch_message(batch.at + at, batch.size - at, &own);
        if (!size || queue_offset - first >= run->max_messages ||
            !add_message(run, common, shared, &own, topic, queue_offset, queue_offset == first))
            return 0;
    }
    return queue_offset > first ? queue_offset : 0;
}

/* Add what a request sends, and its response. Returns 0 if something is unusual, or after an error; the caller then
drops what was added. */
static int add_request(Run *run, const Header *header, const Common *common, Span body, PyObject *topic,
                       PyObject *queue) {
    uint8_t origin[MAX_ORIGIN], topic_field[1 + MAX_TOPIC_SIZE];
    Shared shared = {{topic_field, 1 + common->topic.size}, {origin, 0}, (int32_t)common->queue_id};
    Span raw = field(&header->ext, 'i'), batch = field(&header->ext, 'm');
    Py_ssize_t begin = run->responses.size;
    PyObject *next;
    int64_t first, behind;
    int is_added;
    topic_field[0] = (uint8_t)common->topic.size;
    put_span(topic_field + 1, common->topic);
    run->origin.born_timestamp = common->born_timestamp;
    run->origin.sys_flag = (int32_t)common->sys_flag;
    run->origin.reconsume_times = (int32_t)common->reconsume_times;
    shared.origin.size = write_origin(origin, &run->origin);
    if (!shared.origin.size || !next_offset(run, queue, &first) || !begin_response(run))
        return 0;
    if (header->code == SEND_BATCH_MESSAGE) {
        if (common->sys_flag & TRANSACTION_MASK || !is_text(batch, "true") || !adds_nothing(raw))
            return 0;
        behind = add_batch(run, common, &shared, body, topic, first);
    } else {
        if (common->sys_flag & NOT_DISPATCHED || (batch.at && !is_text(batch, "false")))
            return 0;
        behind = add_single(run, common, &shared, raw, body, topic, first) ? first + 1 : 0;
    }
    if (!behind || !end_response(run, begin, common->queue_id, first, header->opaque) ||
        !(next = PyLong_FromLongLong(behind)))
        return 0;
    is_added = PyDict_SetItem(run->advanced, queue, next) == 0;
    Py_DECREF(next);
    return is_added;
}

/* Add a request, or nothing: then return 0. */
static int encode_request(Run *run, const Header *header, Span body) {
    Py_ssize_t records = run->records.size, responses = run->responses.size, requests = PyList_Size(run->requests);
    int64_t physical_offset = run->physical_offset, room = run->room;
    Common common;
    PyObject *topic, *queue;
    int is_added;
    if (body.size > run->max_body_size || !take_common(&header->ext, &common) ||
        !(topic = topic_of(run, common.topic, common.queue_id)))
        return 0;
    queue = Py_BuildValue("(OL)", topic, (long long)common.queue_id);
    is_added = queue && add_request(run, header, &common, body, topic, queue);
    if (!is_added) {
        run->records.size = records;
        run->responses.size = responses;
        run->physical_offset = physical_offset;
        run->room = room;
        if (!PyErr_Occurred())
            PyList_SetSlice(run->requests, requests, PY_SSIZE_T_MAX, NULL);
    }
    Py_XDECREF(queue);
    Py_DECREF(topic);
    return is_added;
}

/* Take the parts that are the same for all sends of a broker: (max frame size, max header size, end, names, topics,
store host, form). */
static int take_sending(PyObject *sending, Frames *frames, Run *run) {
    PyObject *form;
    if (!PyTuple_Check(sending) || PyTuple_Size(sending) != 7 ||
        !take_i64(PyTuple_GetItem(sending, 0), &frames->max_frame_size) ||
        !take_i64(PyTuple_GetItem(sending, 1), &frames->max_header_size) ||
        !take_bytes(PyTuple_GetItem(sending, 2), &run->end) || run->end.size < 1 ||
        !take_names(PyTuple_GetItem(sending, 3), &run->properties) ||
        !take_bytes(PyTuple_GetItem(sending, 5), &run->origin.store_host))
        return 0;
    run->topics = PyTuple_GetItem(sending, 4);
    form = PyTuple_GetItem(sending, 6);
    if (!PyDict_Check(run->topics) || !PyTuple_Check(form) || PyTuple_Size(form) != FORM_PARTS)
        return 0;
    for (int part = 0; part < FORM_PARTS; part++)
        if (!take_bytes(PyTuple_GetItem(form, part), &run->form[part]))
            return 0;
    return 1;
}

/* Counterpart: what a broker does with usual sends from their frames to its responses, but for the put of the records:
FrameDecoder, decode_header with SendMessageRequestHeaderV2, PropertyEditor, encode or encode_many, and
SendAnswers.formatted.

(data, max count, sending, max body size, max keys size, max messages of a batch, queue offsets, physical offset, room,
store timestamp, born host) -> (records as a bytearray, responses, [the fields of a DispatchRequest, ...], {(topic, queue id): next
queue offset}, number of requests, position behind the last of them) | None */
PyObject *encode_sends(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Py_buffer data;
    int64_t max_count, done = 0;
    Frames frames = {0};
    Run run = {0};
    PyObject *result = NULL;
    if (count != 11 || !take_i64(args[1], &max_count) || !take_sending(args[2], &frames, &run) ||
        !take_i64(args[3], &run.max_body_size) || !take_i64(args[4], &run.max_keys_size) ||
        !take_i64(args[5], &run.max_messages) || !PyDict_Check(args[6]) || !take_i64(args[7], &run.physical_offset) ||
        !take_i64(args[8], &run.room) || !take_i64(args[9], &run.origin.store_timestamp) ||
        !take_bytes(args[10], &run.origin.born_host) || run.physical_offset < 0 ||
        run.room > INT64_MAX - run.physical_offset || PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return decline();
    run.names = PyModule_GetState(module);
    run.offsets = args[6];
    run.advanced = PyDict_New();
    run.requests = PyList_New(0);
    frames.data = (Span){data.buf, data.len};
    /* Records are about as large as the frames that they come from. */
    if (!run.advanced || !run.requests || !grow(&run.records, data.len) || !grow(&run.responses, FIRST_RESPONSES))
        max_count = 0;
    while (done < max_count) {
        Py_ssize_t begin = frames.position;
        Header header;
        Span body;
        if (!take_request(&frames, SENDS, &header, &body))
            break;
        if (!encode_request(&run, &header, body)) {
            frames.position = begin;
            break;
        }
        done++;
    }
    PyBuffer_Release(&data);
    if (!PyErr_Occurred() && done && PyByteArray_Resize(run.records.array, run.records.size) == 0)
        result = Py_BuildValue("(Oy#OOLn)", run.records.array, run.responses.at, run.responses.size, run.requests,
                               run.advanced, (long long)done, frames.position);
    Py_XDECREF(run.records.array);
    Py_XDECREF(run.responses.array);
    Py_XDECREF(run.text.array);
    Py_XDECREF(run.requests);
    Py_XDECREF(run.advanced);
    return result ? result : decline();
}
