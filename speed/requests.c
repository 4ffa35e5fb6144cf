/* Requests to send a message or a batch, or to pull messages, from the bytes of a read.

JSON of the usual form only: no white space, no member twice, none that these requests do not have, and the code before
the ext fields. Numbers are decimal and of up to 18 digits. Escapes occur in the property string alone, which needs them
for its separators. */

#include "speed.h"

#define SIZE_OF_SIZE 4
#define PREFIX_SIZE 8
#define PULL_MESSAGE 11
#define SEND_MESSAGE_V2 310
#define SEND_BATCH_MESSAGE 320

typedef struct {
    const uint8_t *at, *end;
} Cursor;

/* The ext fields of sends are called `a` to `m`; those of a PULL_MESSAGE have these names. */
enum {
    GROUP, TOPIC, QUEUE_ID, QUEUE_OFFSET, MAX_MSG_NUMS, SYS_FLAG, COMMIT_OFFSET, SUSPEND_TIMEOUT, SUBSCRIPTION,
    SUB_VERSION, EXPRESSION_TYPE, PULL_FIELDS
};
static const char *const pull_fields[PULL_FIELDS] = {
    "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset",
    "suspendTimeoutMillis", "subscription", "subVersion", "expressionType",
};
#define SEND_FIELDS ('m' - 'a' + 1)

/* Ext fields by their places, as raw text between their quotes. */
typedef struct {
    Span of[SEND_FIELDS > PULL_FIELDS ? SEND_FIELDS : PULL_FIELDS];
} Fields;

/* What property strings are edited with: the arguments of edit_properties, and of read_batch. */
typedef struct {
    Span end;
    PyObject *names;
    int64_t max_messages;
} Editing;

typedef struct {
    Fields ext;
    int64_t code, flag, opaque, version;
    int seen; /* one bit for each member of the header */
} Header;

enum { CODE = 1, EXT_FIELDS = 2, FLAG = 4, LANGUAGE = 8, OPAQUE = 16, SERIALIZER = 32, VERSION = 64 };

static inline int take(Cursor *cursor, char expected) {
    return cursor->at < cursor->end && *cursor->at == (uint8_t)expected && ++cursor->at;
}

/* Take a string up to its closing quote; escapes are left as they are. */
static int take_raw(Cursor *cursor, Span *raw) {
    if (!take(cursor, '"'))
        return 0;
    raw->at = cursor->at;
    for (; cursor->at < cursor->end && *cursor->at != '"'; cursor->at++) {
        if (*cursor->at < ' ' || (*cursor->at == '\\' && ++cursor->at == cursor->end))
            return 0;
    }
    raw->size = cursor->at - raw->at;
    return take(cursor, '"');
}

/* Read a whole text as a number. */
static int number_in(Span text, int64_t *number) {
    int is_negative = text.size > 0 && text.at[0] == '-';
    Py_ssize_t digits = text.size - is_negative;
    int64_t value = 0;
    const uint8_t *at = text.at + is_negative;
    if (digits < 1 || digits > 18 || (at[0] == '0' && (digits > 1 || is_negative)))
        return 0;
    for (Py_ssize_t i = 0; i < digits; i++) {
        if (at[i] < '0' || at[i] > '9')
            return 0;
        value = value * 10 + (at[i] - '0');
    }
    *number = is_negative ? -value : value;
    return 1;
}

static int take_number(Cursor *cursor, int64_t *number) {
    Span text = {cursor->at, 0};
    while (cursor->at < cursor->end && ((*cursor->at >= '0' && *cursor->at <= '9') || *cursor->at == '-'))
        cursor->at++;
    text.size = cursor->at - text.at;
    return number_in(text, number);
}

static inline int is_text(Span span, const char *text) {
    return span.size == (Py_ssize_t)strlen(text) && !memcmp(span.at, text, (size_t)span.size);
}

/* Whether a raw string stands for itself: ASCII without escapes. */
static int is_plain(Span raw) {
    for (Py_ssize_t i = 0; i < raw.size; i++)
        if (raw.at[i] >= 0x80 || raw.at[i] == '\\')
            return 0;
    return 1;
}

/* The place of an ext field; -1 if a request of this code does not have it. */
static int place_of(int64_t code, Span name) {
    if (code != PULL_MESSAGE)
        return name.size == 1 && name.at[0] >= 'a' && name.at[0] <= 'm' ? name.at[0] - 'a' : -1;
    for (int place = 0; place < PULL_FIELDS; place++)
        if (is_text(name, pull_fields[place]))
            return place;
    return -1;
}

static int take_ext(Cursor *cursor, int64_t code, Fields *fields) {
    memset(fields, 0, sizeof *fields);
    if (!take(cursor, '{'))
        return 0;
    do {
        Span name, value;
        int place;
        if (!take_raw(cursor, &name) || (place = place_of(code, name)) < 0 || !take(cursor, ':') ||
            !take_raw(cursor, &value) || fields->of[place].at)
            return 0;
        fields->of[place] = value;
    } while (take(cursor, ','));
    return take(cursor, '}');
}

static inline int is_served(int64_t code) {
    return code == SEND_MESSAGE_V2 || code == SEND_BATCH_MESSAGE || code == PULL_MESSAGE;
}

static int take_member(Cursor *cursor, Header *header) {
    Span name, text;
    int member;
    if (!take_raw(cursor, &name) || !take(cursor, ':'))
        return 0;
    if (is_text(name, "code"))
        member = take_number(cursor, &header->code) && is_served(header->code) ? CODE : 0;
    else if (is_text(name, "extFields"))
        member = header->seen & CODE && take_ext(cursor, header->code, &header->ext) ? EXT_FIELDS : 0;
    else if (is_text(name, "flag"))
        member = take_number(cursor, &header->flag) ? FLAG : 0;
    else if (is_text(name, "language"))
        member = take_raw(cursor, &text) && is_plain(text) ? LANGUAGE : 0;
    else if (is_text(name, "opaque"))
        member = take_number(cursor, &header->opaque) ? OPAQUE : 0;
    else if (is_text(name, "serializeTypeCurrentRPC"))
        member = take_raw(cursor, &text) && is_text(text, "JSON") ? SERIALIZER : 0;
    else
        member = is_text(name, "version") && take_number(cursor, &header->version) ? VERSION : 0;
    if (!member || header->seen & member)
        return 0;
    header->seen |= member;
    return 1;
}

static inline int is_i32(int64_t number) { return number >= INT32_MIN && number <= INT32_MAX; }

/* Read a header whose members and ext fields are all of the usual form. */
static int take_header(Span raw, Header *header) {
    Cursor cursor = {raw.at, raw.at + raw.size};
    memset(header, 0, sizeof *header);
    if (!take(&cursor, '{'))
        return 0;
    do {
        if (!take_member(&cursor, header))
            return 0;
    } while (take(&cursor, ','));
    return take(&cursor, '}') && cursor.at == cursor.end && header->seen & EXT_FIELDS && header->seen & OPAQUE &&
           !header->flag && is_i32(header->opaque) && is_i32(header->version);
}

static inline Span field(const Fields *fields, char name) { return fields->of[name - 'a']; }

/* Read an ext field as a number of 32 bits; `number` stays if the field is absent. */
static int i32_in(Span text, int64_t *number) { return !text.at || (number_in(text, number) && is_i32(*number)); }

static int is_hex_below_0x80(const uint8_t *digits, uint8_t *byte) {
    int low = digits[3] <= '9' ? digits[3] - '0' : (digits[3] | 0x20) - 'a' + 10;
    int is_digit = (digits[3] >= '0' && digits[3] <= '9') || ((digits[3] | 0x20) >= 'a' && (digits[3] | 0x20) <= 'f');
    if (!is_digit || digits[0] != '0' || digits[1] != '0' || digits[2] < '0' || digits[2] > '7')
        return 0;
    *byte = (uint8_t)((digits[2] - '0') << 4 | low);
    return 1;
}

/* Return the edited form of a raw property string, whose escapes are replaced; NULL if something is unusual. */
static PyObject *edited_of(Span raw, const Editing *editing) {
    uint8_t small[1024], *out = small, *at;
    PyObject *edited = NULL;
    if (raw.size > (Py_ssize_t)sizeof small && !(out = PyMem_Malloc((size_t)raw.size)))
        return PyErr_NoMemory();
    at = out;
    for (Py_ssize_t i = 0; i < raw.size; i++) {
        if (raw.at[i] != '\\') {
            *at++ = raw.at[i];
        } else if (raw.at[i + 1] == '"' || raw.at[i + 1] == '\\' || raw.at[i + 1] == '/') {
            *at++ = raw.at[++i];
        } else if (raw.at[i + 1] == 'u' && raw.size - i >= 6 && is_hex_below_0x80(raw.at + i + 2, at)) {
            at++;
            i += 5;
        } else {
            goto done;
        }
    }
    if (is_utf8(out, at - out))
        edited = edited_properties((Span){out, at - out}, editing->end, editing->names);
done:
    if (out != small)
        PyMem_Free(out);
    return edited;
}

/* The fields that sends of one message and of a batch have in common. */
typedef struct {
    Span topic;
    int64_t queue_id, sys_flag, born_timestamp, flag, reconsume_times;
} Common;

/* Take them; 0 if a field is not of the usual form. Those that are not needed must be valid all the same. */
static int take_common(const Fields *ext, Common *common) {
    int64_t unused = 0;
    common->topic = field(ext, 'b');
    common->reconsume_times = 0;
    return common->topic.at && common->topic.size && is_plain(common->topic) && field(ext, 'e').at &&
           i32_in(field(ext, 'e'), &common->queue_id) && field(ext, 'f').at &&
           i32_in(field(ext, 'f'), &common->sys_flag) && field(ext, 'g').at &&
           number_in(field(ext, 'g'), &common->born_timestamp) && field(ext, 'h').at &&
           i32_in(field(ext, 'h'), &common->flag) && i32_in(field(ext, 'j'), &common->reconsume_times) &&
           is_plain(field(ext, 'a')) && is_plain(field(ext, 'c')) && i32_in(field(ext, 'd'), &unused) &&
           is_plain(field(ext, 'k')) && i32_in(field(ext, 'l'), &unused);
}

/* Return a UsualSend, or NULL if a field is not of the usual form. */
static PyObject *send_of(const Fields *ext, const Editing *editing, Span body) {
    Common common;
    PyObject *edited;
    if (!take_common(ext, &common) || (field(ext, 'm').at && !is_text(field(ext, 'm'), "false")))
        return NULL;
    edited = edited_of(field(ext, 'i'), editing);
    if (!edited)
        return NULL;
    return Py_BuildValue("(s#LLLLLNy#)", common.topic.at, common.topic.size, (long long)common.queue_id,
                         (long long)common.sys_flag, (long long)common.born_timestamp, (long long)common.flag,
                         (long long)common.reconsume_times, edited, body.at, body.size);
}

/* Whether the properties of a batch add nothing to those of its messages. */
static int adds_nothing(Span raw) {
    return !raw.size || is_text(raw, "WAIT\\u0001true") || is_text(raw, "WAIT\\u0001true\\u0002");
}

/* Return a UsualBatch, or NULL if a field or a message is not of the usual form. */
static PyObject *batch_of(const Fields *ext, const Editing *editing, Span body) {
    Common common;
    PyObject *columns;
    if (!take_common(ext, &common) || !is_text(field(ext, 'm'), "true") || !adds_nothing(field(ext, 'i')) || !body.size)
        return NULL;
    columns = batch_columns(body, editing->end, editing->names, editing->max_messages);
    if (!columns)
        return NULL;
    return Py_BuildValue("(s#LLLLNn)", common.topic.at, common.topic.size, (long long)common.queue_id,
                         (long long)common.sys_flag, (long long)common.born_timestamp,
                         (long long)common.reconsume_times, columns, body.size);
}

/* Read an ext field as a number; `number` stays if the field is absent. */
static int i64_in(Span text, int64_t *number) { return !text.at || number_in(text, number); }

/* Return a UsualPull, or NULL if a field is not of the usual form. */
static PyObject *pull_of(const Fields *ext) {
    const Span *of = ext->of;
    int64_t queue_id, queue_offset, max_msg_nums, sys_flag, commit_offset = 0, suspend_timeout = 0, sub_version = 0;
    for (int place = GROUP; place <= SYS_FLAG; place++)
        if (!of[place].at)
            return NULL;
    if (!is_plain(of[GROUP]) || !of[TOPIC].size || !is_plain(of[TOPIC]) || !i32_in(of[QUEUE_ID], &queue_id) ||
        !i64_in(of[QUEUE_OFFSET], &queue_offset) || !i32_in(of[MAX_MSG_NUMS], &max_msg_nums) ||
        !i32_in(of[SYS_FLAG], &sys_flag) || !i64_in(of[COMMIT_OFFSET], &commit_offset) ||
        !i64_in(of[SUSPEND_TIMEOUT], &suspend_timeout) || !is_plain(of[SUBSCRIPTION]) ||
        !i64_in(of[SUB_VERSION], &sub_version) || !is_plain(of[EXPRESSION_TYPE]))
        return NULL;
    return Py_BuildValue("(s#s#LLLLLLz#Lz#)", of[GROUP].at, of[GROUP].size, of[TOPIC].at, of[TOPIC].size,
                         (long long)queue_id, (long long)queue_offset, (long long)max_msg_nums, (long long)sys_flag,
                         (long long)commit_offset, (long long)suspend_timeout, of[SUBSCRIPTION].at,
                         of[SUBSCRIPTION].size, (long long)sub_version, of[EXPRESSION_TYPE].at,
                         of[EXPRESSION_TYPE].size);
}

/* Return (code, opaque, what it asks for, end), or NULL if a field is not of the usual form. */
static PyObject *request_of(const Header *header, const Editing *editing, Span body, Py_ssize_t end) {
    PyObject *request = header->code == PULL_MESSAGE          ? pull_of(&header->ext)
                        : header->code == SEND_BATCH_MESSAGE ? batch_of(&header->ext, editing, body)
                                                             : send_of(&header->ext, editing, body);
    return request ? Py_BuildValue("(LLNn)", (long long)header->code, (long long)header->opaque, request, end) : NULL;
}

/* Counterpart: FrameDecoder, decode_header with PullMessageRequestHeader or SendMessageRequestHeaderV2, and
PropertyEditor.edit or read_batch, for the requests at the begin of a read.

(data, max frame size, max header size, end, names, max count, max messages of a batch)
-> [(code, opaque, UsualSend, UsualBatch or UsualPull, position behind its frame), ...] | None */
PyObject *usual_requests(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Py_buffer data;
    int64_t max_frame_size, max_header_size, max_count;
    Py_ssize_t position = 0;
    Editing editing;
    PyObject *requests;
    (void)module;
    if (count != 7 || !take_i64(args[1], &max_frame_size) || !take_i64(args[2], &max_header_size) ||
        !take_bytes(args[3], &editing.end) || !take_i64(args[5], &max_count) ||
        !take_i64(args[6], &editing.max_messages) || PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return decline();
    editing.names = args[4];
    requests = PyList_New(0);
    while (requests && max_count-- > 0 && data.len - position >= PREFIX_SIZE) {
        const uint8_t *at = (const uint8_t *)data.buf + position;
        int64_t length = get_u32(at), header_size = get_u32(at + SIZE_OF_SIZE); /* top byte: the serializer, 0 is JSON */
        Header header;
        PyObject *request;
        int is_added;
        if (length < SIZE_OF_SIZE || length > max_frame_size || length > data.len - position - SIZE_OF_SIZE ||
            header_size > length - SIZE_OF_SIZE || header_size > max_header_size ||
            !take_header((Span){at + PREFIX_SIZE, (Py_ssize_t)header_size}, &header))
            break;
        position += (Py_ssize_t)(SIZE_OF_SIZE + length);
        request = request_of(
            &header, &editing,
            (Span){at + PREFIX_SIZE + header_size, (Py_ssize_t)(length - SIZE_OF_SIZE - header_size)}, position);
        if (!request)
            break;
        is_added = PyList_Append(requests, request) == 0;
        Py_DECREF(request);
        if (!is_added)
            break;
    }
    PyBuffer_Release(&data);
    if (!requests || PyErr_Occurred()) {
        if (!requests || PyErr_ExceptionMatches(PyExc_MemoryError)) {
            Py_XDECREF(requests);
            return NULL;
        }
        PyErr_Clear(); /* invalid UTF-8: the requests before that one count */
    }
    return requests;
}
