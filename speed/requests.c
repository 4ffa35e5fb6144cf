/* Sends, pulls and receives by POP: from the bytes of a read to columns, and from columns to the bytes of responses.

JSON of the usual form only: no white space, no member twice, none that these requests do not have, and the code before
the ext fields. Numbers are decimal and of up to 18 digits. Escapes occur in the property string alone, which needs them
for its separators. */

#include "speed.h"

#define SIZE_OF_SIZE 4
#define PREFIX_SIZE 8
#define PULL_MESSAGE 11
#define POP_MESSAGE 200050
#define SEND_MESSAGE_V2 310
#define SEND_BATCH_MESSAGE 320
#define NOT_DISPATCHED 0x4   /* sysFlag of prepared and rolled-back messages */
#define TRANSACTION_MASK 0xC /* of those and committed ones */
#define ONE_WAY 0x2
#define MAX_TOPIC_SIZE 127
#define MAX_DIGITS 20
#define ID_DIGITS 16 /* of a physical offset in an offsetMsgId */
#define FORM_PARTS 6

typedef struct {
    const uint8_t *at, *end;
} Cursor;

/* The ext fields of sends are called `a` to `m`, those of a PULL_MESSAGE and a POP_MESSAGE have these names. */
enum { GROUP, TOPIC, QUEUE_ID, QUEUE_OFFSET, MAX_MSG_NUMS, SYS_FLAG, COMMIT_OFFSET, SUSPEND_TIMEOUT, SUBSCRIPTION,
       SUB_VERSION, EXPRESSION_TYPE, PULL_FIELDS };
static const char *const pull_fields[PULL_FIELDS] = {
    "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset",
    "suspendTimeoutMillis", "subscription", "subVersion", "expressionType",
};
enum { POP_GROUP, POP_TOPIC, POP_QUEUE_ID, POP_MAX_MSG_NUMS, INVISIBLE_TIME, POLL_TIME, BORN_TIME, INIT_MODE, EXP_TYPE,
       EXP, ORDER, ATTEMPT_ID, CLIENT_ID, POP_FIELDS };
static const char *const pop_fields[POP_FIELDS] = {
    "consumerGroup", "topic", "queueId", "maxMsgNums", "invisibleTime", "pollTime", "bornTime", "initMode", "expType",
    "exp", "order", "attemptId", "clientId",
};
#define BEGIN_AT_END 1 /* initMode */
enum { HAS_COMMIT_OFFSET = 1, MAY_SUSPEND = 2, HAS_SUBSCRIPTION = 4 }; /* bits of its sysFlag */

/* The places of ext fields that both have if they are signed, behind those of each kind; and all places. */
enum { ACCESS_KEY = 'm' - 'a' + 1, SIGNATURE, PLACES };

/* Ext fields by their places: raw text between quotes. */
typedef struct {
    Span ext[PLACES];
    int64_t code, flag, opaque, version;
    int seen; /* one bit for each member */
} Header;

/* The fields that all messages of a request have in common. */
typedef struct {
    Span topic;
    int64_t queue_id, sys_flag, born_timestamp, flag, reconsume_times;
} Common;

enum { CODE = 1, EXT_FIELDS = 2, FLAG = 4, LANGUAGE = 8, OPAQUE = 16, SERIALIZER = 32, VERSION = 64 };

static inline Span field(const Header *header, char name) { return header->ext[name - 'a']; }

static inline int is_text(Span span, const char *text) {
    return span.size == (Py_ssize_t)strlen(text) && !memcmp(span.at, text, (size_t)span.size);
}

static uint8_t *put_span(uint8_t *at, Span span) {
    memcpy(at, span.at, (size_t)span.size);
    return at + span.size;
}

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

/* Whether a raw string stands for itself: ASCII without escapes. */
static int is_plain(Span raw) {
    for (Py_ssize_t i = 0; i < raw.size; i++)
        if (raw.at[i] >= 0x80 || raw.at[i] == '\\')
            return 0;
    return 1;
}

/* The place of an ext field; -1 if a request of this code does not have it. */
static int place_of(int64_t code, Span name) {
    const char *const *names = code == PULL_MESSAGE ? pull_fields : code == POP_MESSAGE ? pop_fields : NULL;
    int count = code == PULL_MESSAGE ? PULL_FIELDS : POP_FIELDS;
    if (!names && name.size == 1)
        return name.at[0] >= 'a' && name.at[0] <= 'm' ? name.at[0] - 'a' : -1;
    for (int place = 0; names && place < count; place++)
        if (is_text(name, names[place]))
            return place;
    return is_text(name, "AccessKey") ? ACCESS_KEY : is_text(name, "Signature") ? SIGNATURE : -1;
}

static int take_ext(Cursor *cursor, Header *header) {
    if (!take(cursor, '{'))
        return 0;
    do {
        Span name, value;
        int place;
        if (!take_raw(cursor, &name) || (place = place_of(header->code, name)) < 0 || !take(cursor, ':') ||
            !take_raw(cursor, &value) || header->ext[place].at)
            return 0;
        header->ext[place] = value;
    } while (take(cursor, ','));
    return take(cursor, '}');
}

static int take_member(Cursor *cursor, Header *header) {
    Span name, text;
    int member;
    if (!take_raw(cursor, &name) || !take(cursor, ':'))
        return 0;
    if (is_text(name, "code"))
        member = take_number(cursor, &header->code) ? CODE : 0;
    else if (is_text(name, "extFields"))
        member = header->seen & CODE && take_ext(cursor, header) ? EXT_FIELDS : 0;
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
           !(header->flag & ~ONE_WAY) && is_i32(header->opaque) && is_i32(header->version);
}

/* Read an ext field as a number of 32 bits; `number` stays if the field is absent. */
static int i32_in(Span text, int64_t *number) { return !text.at || (number_in(text, number) && is_i32(*number)); }

/* Those that are not needed must be valid all the same. */
static int take_common(const Header *header, Common *common) {
    int64_t unused = 0;
    common->topic = field(header, 'b');
    common->reconsume_times = 0;
    return common->topic.at && common->topic.size && common->topic.size <= MAX_TOPIC_SIZE && is_plain(common->topic) &&
           field(header, 'e').at && i32_in(field(header, 'e'), &common->queue_id) && field(header, 'f').at &&
           i32_in(field(header, 'f'), &common->sys_flag) && field(header, 'g').at &&
           number_in(field(header, 'g'), &common->born_timestamp) && field(header, 'h').at &&
           i32_in(field(header, 'h'), &common->flag) && i32_in(field(header, 'j'), &common->reconsume_times) &&
           is_plain(field(header, 'a')) && is_plain(field(header, 'c')) && i32_in(field(header, 'd'), &unused) &&
           is_plain(field(header, 'k')) && i32_in(field(header, 'l'), &unused);
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

/* Return the credentials of a request: (access key, signature, signed text before the body, position of the body), or
None without any; NULL if they are unusual, or after an error. `places` are those of the other ext fields by name. */
static PyObject *credentials_of(const Span *ext, const int *places, int count, Py_ssize_t body_at) {
    Span key = ext[ACCESS_KEY], signature = ext[SIGNATURE];
    Py_ssize_t size = key.size;
    PyObject *text;
    uint8_t *at;
    if (!key.at && !signature.at)
        Py_RETURN_NONE;
    for (int i = 0; i < count; i++)
        size += ext[places[i]].size;
    if (!key.at || !signature.at || !is_plain(key) || !is_plain(signature) ||
        !(text = PyBytes_FromStringAndSize(NULL, size)))
        return NULL;
    at = put_span((uint8_t *)PyBytes_AsString(text), key);
    for (int i = 0; i < count; i++)
        if (ext[places[i]].size)
            at = put_span(at, ext[places[i]]);
    return Py_BuildValue("(s#s#Nn)", key.at, key.size, signature.at, signature.size, text, body_at);
}

/* Whether the properties of a batch add nothing to those of its messages. */
static int adds_nothing(Span raw) {
    return !raw.size || is_text(raw, "WAIT\\u0001true") || is_text(raw, "WAIT\\u0001true\\u0002");
}

/* Columns with an item for each request, then with one for each message. */
enum { OPAQUES, COUNTS, ENDS, CREDENTIALS, TOPICS, QUEUE_IDS, FLAGS, SYS_FLAGS, BORN_TIMESTAMPS, RECONSUME_TIMES,
       PROPERTIES, BODIES, COLUMNS };

typedef struct {
    PyObject *columns[COLUMNS];
    uint8_t *text; /* room for unescaped properties */
    Py_ssize_t room;
    PyObject *topic; /* of the last request */
    int64_t max_frame_size, max_header_size, max_body_size, max_messages;
} Sends;

/* Append a new reference, or NULL after an error, which it takes. */
static int add(Sends *sends, int column, PyObject *item) {
    int is_added = item && PyList_Append(sends->columns[column], item) == 0;
    Py_XDECREF(item);
    return is_added;
}

static int add_number(Sends *sends, int column, int64_t number) {
    return add(sends, column, PyLong_FromLongLong(number));
}

static PyObject *bytes_of(Span span) { return PyBytes_FromStringAndSize((const char *)span.at, span.size); }

static int add_message(Sends *sends, const Common *common, const Own *own) {
    Py_INCREF(sends->topic);
    return add(sends, TOPICS, sends->topic) && add_number(sends, QUEUE_IDS, common->queue_id) &&
           add_number(sends, FLAGS, own->flag) && add_number(sends, SYS_FLAGS, common->sys_flag) &&
           add_number(sends, BORN_TIMESTAMPS, common->born_timestamp) &&
           add_number(sends, RECONSUME_TIMES, common->reconsume_times) &&
           add(sends, PROPERTIES, bytes_of(own->properties)) && add(sends, BODIES, bytes_of(own->body));
}

/* Return the number of messages of a batch; 0 if one is not of the usual form, or there are too many. */
static int64_t count_messages(const Sends *sends, Span batch) {
    int64_t count = 0;
    for (Py_ssize_t at = 0, size; at < batch.size; at += size, count++) {
        Own own;
        size = batch_message(batch.at + at, batch.size - at, &own);
        if (!size || count == sends->max_messages)
            return 0;
    }
    return count;
}

static int add_batch(Sends *sends, const Common *common, Span batch) {
    for (Py_ssize_t at = 0; at < batch.size;) {
        Own own;
        at += batch_message(batch.at + at, batch.size - at, &own);
        if (!add_message(sends, common, &own))
            return 0;
    }
    return 1;
}

/* Unescape the properties of a send. Return 0 if they are unusual, or after an error. */
static int take_properties(Sends *sends, Span raw, Span *properties) {
    if (raw.size > 6 * MAX_PROPERTIES_SIZE)
        return 0;
    if (raw.size > sends->room) {
        uint8_t *text = PyMem_Realloc(sends->text, (size_t)raw.size);
        if (!text) {
            PyErr_NoMemory();
            return 0;
        }
        sends->text = text;
        sends->room = raw.size;
    }
    *properties = (Span){sends->text, raw.size ? unescape(raw, sends->text) : 0};
    return properties->size >= 0 && is_utf8(properties->at, properties->size);
}

/* Keep the object of the last topic: most requests of a read have the same. */
static int take_topic(Sends *sends, Span name) {
    Py_ssize_t size;
    const char *last = sends->topic ? PyUnicode_AsUTF8AndSize(sends->topic, &size) : NULL;
    if (last && size == name.size && !memcmp(last, name.at, (size_t)size))
        return 1;
    Py_XDECREF(sends->topic);
    sends->topic = PyUnicode_FromStringAndSize((const char *)name.at, name.size);
    return sends->topic != NULL;
}

/* Add the messages of a request whose frame ends at `end`. Return 0, adding nothing, if it is unusual; after an error,
some may be added. */
static int add_request(Sends *sends, Header *header, Span body, Py_ssize_t end) {
    static const int places[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    Common common;
    PyObject *credentials;
    Span raw = field(header, 'i'), batch = field(header, 'm');
    int is_batch = header->code == SEND_BATCH_MESSAGE || is_text(batch, "true");
    int64_t count = 1;
    Own own = {body, {NULL, 0}, 0};
    if ((header->code != SEND_MESSAGE_V2 && header->code != SEND_BATCH_MESSAGE) ||
        body.size > sends->max_body_size || !take_common(header, &common) ||
        (batch.at && !is_text(batch, "true") && !is_text(batch, "false")) ||
        !take_properties(sends, raw, &own.properties))
        return 0;
    if (is_batch) {
        if (common.sys_flag & TRANSACTION_MASK || !adds_nothing(raw) || (count = count_messages(sends, body)) < 2)
            return 0;
    } else if (common.sys_flag & NOT_DISPATCHED) {
        return 0;
    }
    own.flag = (int32_t)common.flag;
    header->ext['i' - 'a'] = own.properties;
    credentials = credentials_of(header->ext, places, sizeof places / sizeof *places, end - body.size);
    return credentials && add(sends, CREDENTIALS, credentials) && take_topic(sends, common.topic) &&
           (is_batch ? add_batch(sends, &common, body) : add_message(sends, &common, &own)) &&
           add(sends, OPAQUES, header->flag ? Py_NewRef(Py_None) : PyLong_FromLongLong(header->opaque)) &&
           add_number(sends, COUNTS, count) && add_number(sends, ENDS, end);
}

/* Take the next frame if it is complete and its header of the usual form; return its end, or 0. */
static Py_ssize_t take_request(int64_t max_frame_size, int64_t max_header_size, Span data, Py_ssize_t position,
                               Header *header, Span *body) {
    const uint8_t *at = data.at + position;
    int64_t left = data.size - position, length, header_size;
    if (left < PREFIX_SIZE)
        return 0;
    length = get_u32(at), header_size = get_u32(at + SIZE_OF_SIZE); /* top byte: the serializer, 0 is JSON */
    if (length < SIZE_OF_SIZE || length > max_frame_size || length > left - SIZE_OF_SIZE ||
        header_size > length - SIZE_OF_SIZE || header_size > max_header_size ||
        !take_header((Span){at + PREFIX_SIZE, (Py_ssize_t)header_size}, header))
        return 0;
    *body = (Span){at + PREFIX_SIZE + header_size, (Py_ssize_t)(length - SIZE_OF_SIZE - header_size)};
    return position + (Py_ssize_t)(SIZE_OF_SIZE + length);
}

/* Counterpart: FrameDecoder and columns_of of rucola.broker.remoting.send, for the sends at the begin of a read.

(data, max frame size, max header size, max requests, max body size, max messages of a batch) -> 4 lists with an item
for each request (opaque, or None if it is one-way; number of messages; position behind its frame; credentials), and 8
with one for each message: topics, queue ids, flags, sysFlags, born timestamps, reconsume times, properties, bodies | None */
PyObject *read_sends(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Py_buffer data;
    int64_t max_requests;
    Sends sends = {0};
    Py_ssize_t position = 0;
    PyObject *result = NULL;
    (void)module;
    if (count != 6 || !take_i64(args[1], &sends.max_frame_size) || !take_i64(args[2], &sends.max_header_size) ||
        !take_i64(args[3], &max_requests) || !take_i64(args[4], &sends.max_body_size) ||
        !take_i64(args[5], &sends.max_messages) || PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return decline();
    for (int column = 0; column < COLUMNS; column++)
        if (!(sends.columns[column] = PyList_New(0)))
            goto done;
    while (max_requests-- > 0) {
        Header header;
        Span body;
        Py_ssize_t end = take_request(sends.max_frame_size, sends.max_header_size, (Span){data.buf, data.len},
                                      position, &header, &body);
        if (!end || !add_request(&sends, &header, body, end))
            break;
        position = end;
    }
    if (position && !PyErr_Occurred() && (result = PyTuple_New(COLUMNS)))
        for (int column = 0; column < COLUMNS; column++) {
            PyTuple_SetItem(result, column, sends.columns[column]);
            sends.columns[column] = NULL;
        }
done:
    for (int column = 0; column < COLUMNS; column++)
        Py_XDECREF(sends.columns[column]);
    Py_XDECREF(sends.topic);
    PyMem_Free(sends.text);
    PyBuffer_Release(&data);
    return result ? result : decline();
}

/* Read an ext field as a number; `number` stays if the field is absent. */
static int i64_in(Span text, int64_t *number) { return !text.at || number_in(text, number); }

static PyObject *number_or_none(int64_t is_set, int64_t number) {
    if (!is_set)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(number);
}

/* Return the fields of a FetchRequest; NULL if one is not of the usual form. */
static PyObject *fetch_of(const Span *of) {
    int64_t queue_id, queue_offset, max_msg_nums, flags, commit_offset = 0, suspend_timeout = 0, sub_version = 0;
    for (int place = GROUP; place <= SYS_FLAG; place++)
        if (!of[place].at)
            return NULL;
    if (!is_plain(of[GROUP]) || !of[TOPIC].size || !is_plain(of[TOPIC]) || !i32_in(of[QUEUE_ID], &queue_id) ||
        !i64_in(of[QUEUE_OFFSET], &queue_offset) || !i32_in(of[MAX_MSG_NUMS], &max_msg_nums) ||
        !i32_in(of[SYS_FLAG], &flags) || !i64_in(of[COMMIT_OFFSET], &commit_offset) ||
        !i64_in(of[SUSPEND_TIMEOUT], &suspend_timeout) || !is_plain(of[SUBSCRIPTION]) ||
        !i64_in(of[SUB_VERSION], &sub_version) || !is_plain(of[EXPRESSION_TYPE]))
        return NULL;
    Span none = {NULL, 0}, empty = {(const uint8_t *)"", 0}, tag = {(const uint8_t *)"TAG", 3};
    Span expression = !(flags & HAS_SUBSCRIPTION) ? none : of[SUBSCRIPTION].at ? of[SUBSCRIPTION] : empty;
    Span type = of[EXPRESSION_TYPE].size ? of[EXPRESSION_TYPE] : tag;
    return Py_BuildValue("(s#s#LLLNNz#s#L)", of[GROUP].at, of[GROUP].size, of[TOPIC].at, of[TOPIC].size,
                         (long long)queue_id, (long long)queue_offset, (long long)max_msg_nums,
                         number_or_none(flags & HAS_COMMIT_OFFSET, commit_offset),
                         number_or_none(flags & MAY_SUSPEND, suspend_timeout), expression.at, expression.size,
                         type.at, type.size, (long long)sub_version);
}

static int is_absent_or(Span text, const char *one, const char *other) {
    return !text.at || is_text(text, one) || is_text(text, other);
}

/* Return the fields of a PopRequest; NULL if one is not of the usual form. */
static PyObject *pop_of(const Span *of) {
    int64_t queue_id, max_msg_nums, invisible_time, poll_time, born_time = 0, init_mode = 0;
    for (int place = POP_GROUP; place <= POLL_TIME; place++)
        if (!of[place].at)
            return NULL;
    if (!is_plain(of[POP_GROUP]) || !of[POP_TOPIC].size || !is_plain(of[POP_TOPIC]) ||
        !i32_in(of[POP_QUEUE_ID], &queue_id) || !i32_in(of[POP_MAX_MSG_NUMS], &max_msg_nums) ||
        !i64_in(of[INVISIBLE_TIME], &invisible_time) || !i64_in(of[POLL_TIME], &poll_time) ||
        !i64_in(of[BORN_TIME], &born_time) || !i32_in(of[INIT_MODE], &init_mode) || !is_plain(of[EXP_TYPE]) ||
        !is_plain(of[EXP]) || !is_absent_or(of[ORDER], "true", "false") || !is_plain(of[ATTEMPT_ID]) ||
        !is_plain(of[CLIENT_ID]))
        return NULL;
    Span all = {(const uint8_t *)"*", 1}, tag = {(const uint8_t *)"TAG", 3};
    Span expression = of[EXP].size ? of[EXP] : all, type = of[EXP_TYPE].size ? of[EXP_TYPE] : tag;
    Span client = of[CLIENT_ID].at ? of[CLIENT_ID] : (Span){(const uint8_t *)"", 0};
    return Py_BuildValue("(s#s#LLLLNNz#s#s#s#N)", of[POP_GROUP].at, of[POP_GROUP].size, of[POP_TOPIC].at,
                         of[POP_TOPIC].size, (long long)max_msg_nums, (long long)invisible_time, (long long)queue_id,
                         (long long)poll_time, PyBool_FromLong(init_mode == BEGIN_AT_END),
                         PyBool_FromLong(is_text(of[ORDER], "true")), of[ATTEMPT_ID].at, of[ATTEMPT_ID].size,
                         expression.at, expression.size, type.at, type.size, client.at, client.size,
                         PyBool_FromLong(of[CLIENT_ID].at != NULL));
}

/* Counterpart: FrameDecoder, and fetch_request and pop_request of rucola.broker.remoting, for the first request of a read.

(data, max frame size, max header size) -> (code, opaque, fields of the request, position behind the frame, credentials)
| None */
PyObject *read_fetch(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    /* The places of the ext fields in the order of their names. */
    static const int of_pull[] = {COMMIT_OFFSET, GROUP, EXPRESSION_TYPE, MAX_MSG_NUMS, QUEUE_ID, QUEUE_OFFSET,
                                  SUB_VERSION, SUBSCRIPTION, SUSPEND_TIMEOUT, SYS_FLAG, TOPIC};
    static const int of_pop[] = {ATTEMPT_ID, BORN_TIME, CLIENT_ID, POP_GROUP, EXP, EXP_TYPE, INIT_MODE, INVISIBLE_TIME,
                                 POP_MAX_MSG_NUMS, ORDER, POLL_TIME, POP_QUEUE_ID, POP_TOPIC};
    Py_buffer data;
    int64_t max_frame_size, max_header_size;
    Header header;
    Span body;
    Py_ssize_t end;
    PyObject *fields = NULL, *credentials = NULL;
    (void)module;
    if (count != 3 || !take_i64(args[1], &max_frame_size) || !take_i64(args[2], &max_header_size) ||
        PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return decline();
    end = take_request(max_frame_size, max_header_size, (Span){data.buf, data.len}, 0, &header, &body);
    if (end && !header.flag && header.code == PULL_MESSAGE && (fields = fetch_of(header.ext)))
        credentials = credentials_of(header.ext, of_pull, PULL_FIELDS, end - body.size);
    else if (end && !header.flag && header.code == POP_MESSAGE && (fields = pop_of(header.ext)))
        credentials = credentials_of(header.ext, of_pop, POP_FIELDS, end - body.size);
    PyBuffer_Release(&data);
    if (credentials)
        return Py_BuildValue("(LLNnN)", (long long)header.code, (long long)header.opaque, fields, end, credentials);
    Py_XDECREF(fields);
    return decline();
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

static int number_at(PyObject *list, Py_ssize_t at, int64_t *number) {
    PyObject *item = PyList_GetItem(list, at);
    return item && take_i64(item, number);
}

/* Counterpart: SendAnswers.formatted. `form` has the parts of a response: before msgId, of each id, before queueId,
queueOffset and opaque, and the end.

(form, opaques, numbers of messages, queue ids, queue offsets, physical offsets) -> frames of the responses | None */
PyObject *format_sends(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Span form[FORM_PARTS];
    Py_ssize_t requests, messages, fixed = PREFIX_SIZE + 3 * MAX_DIGITS, message = 0;
    PyObject *responses, *result = NULL;
    uint8_t *at, *begin;
    (void)module;
    if (count != 6 || !PyTuple_Check(args[0]) || PyTuple_Size(args[0]) != FORM_PARTS)
        return decline();
    for (int list = 1; list < 6; list++)
        if (!PyList_Check(args[list]))
            return decline();
    for (int part = 0; part < FORM_PARTS; part++) {
        if (!take_bytes(PyTuple_GetItem(args[0], part), &form[part]))
            return decline();
        fixed += form[part].size;
    }
    requests = PyList_Size(args[1]), messages = PyList_Size(args[5]);
    if (requests > PY_SSIZE_T_MAX / 2 / fixed || messages > PY_SSIZE_T_MAX / 2 / (1 + form[1].size + ID_DIGITS))
        return decline();
    responses = PyByteArray_FromStringAndSize(NULL, requests * fixed + messages * (1 + form[1].size + ID_DIGITS));
    if (!responses)
        return decline();
    begin = at = (uint8_t *)PyByteArray_AsString(responses);
    for (Py_ssize_t request = 0; request < requests; request++) {
        int64_t number, queue_id, queue_offset, physical_offset, opaque;
        uint8_t *frame = at;
        if (!number_at(args[2], request, &number) || number < 1 || number > messages - message ||
            !number_at(args[3], message, &queue_id) || !number_at(args[4], message, &queue_offset))
            goto done;
        if (PyList_GetItem(args[1], request) == Py_None) {
            message += (Py_ssize_t)number;
            continue;
        }
        if (!number_at(args[1], request, &opaque))
            goto done;
        at = put_span(at + PREFIX_SIZE, form[0]);
        for (int64_t i = 0; i < number; i++) {
            if (!number_at(args[5], message++, &physical_offset))
                goto done;
            if (i)
                *at++ = ',';
            at = put_hexadecimal(put_span(at, form[1]), (uint64_t)physical_offset);
        }
        at = put_decimal(put_span(at, form[2]), queue_id);
        at = put_decimal(put_span(at, form[3]), queue_offset);
        at = put_decimal(put_span(at, form[4]), opaque);
        at = put_span(at, form[5]);
        put_u32(frame, (uint32_t)(at - frame - SIZE_OF_SIZE));
        put_u32(frame + SIZE_OF_SIZE, (uint32_t)(at - frame - PREFIX_SIZE));
    }
    if (message == messages)
        result = PyBytes_FromStringAndSize((const char *)begin, at - begin);
done:
    Py_DECREF(responses);
    return result ? result : decline();
}
