/* Requests from the bytes of a read: to pull messages, or to send some (sends.c goes on with these).

JSON of the usual form only: no white space, no member twice, none that these requests do not have, and the code before
the ext fields. Numbers are decimal and of up to 18 digits. Escapes occur in the property string alone, which needs them
for its separators. */

#include "requests.h"

#define SIZE_OF_SIZE 4
#define PREFIX_SIZE 8

typedef struct {
    const uint8_t *at, *end;
} Cursor;

static const char *const pull_fields[PULL_FIELDS] = {
    "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset",
    "suspendTimeoutMillis", "subscription", "subVersion", "expressionType",
};

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

static inline int is_one_of(int codes, int64_t code) {
    return codes == PULLS ? code == PULL_MESSAGE : code == SEND_MESSAGE_V2 || code == SEND_BATCH_MESSAGE;
}

static int take_member(Cursor *cursor, int codes, Header *header) {
    Span name, text;
    int member;
    if (!take_raw(cursor, &name) || !take(cursor, ':'))
        return 0;
    if (is_text(name, "code"))
        member = take_number(cursor, &header->code) && is_one_of(codes, header->code) ? CODE : 0;
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
static int take_header(Span raw, int codes, Header *header) {
    Cursor cursor = {raw.at, raw.at + raw.size};
    memset(header, 0, sizeof *header);
    if (!take(&cursor, '{'))
        return 0;
    do {
        if (!take_member(&cursor, codes, header))
            return 0;
    } while (take(&cursor, ','));
    return take(&cursor, '}') && cursor.at == cursor.end && header->seen & EXT_FIELDS && header->seen & OPAQUE &&
           !header->flag && is_i32(header->opaque) && is_i32(header->version);
}

/* Read an ext field as a number of 32 bits; `number` stays if the field is absent. */
static int i32_in(Span text, int64_t *number) { return !text.at || (number_in(text, number) && is_i32(*number)); }

/* Those that are not needed must be valid all the same. */
int take_common(const Fields *ext, Common *common) {
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

int take_request(Frames *frames, int codes, Header *header, Span *body) {
    const uint8_t *at = frames->data.at + frames->position;
    int64_t left = frames->data.size - frames->position, length, header_size;
    if (left < PREFIX_SIZE)
        return 0;
    length = get_u32(at), header_size = get_u32(at + SIZE_OF_SIZE); /* top byte: the serializer, 0 is JSON */
    if (length < SIZE_OF_SIZE || length > frames->max_frame_size || length > left - SIZE_OF_SIZE ||
        header_size > length - SIZE_OF_SIZE || header_size > frames->max_header_size ||
        !take_header((Span){at + PREFIX_SIZE, (Py_ssize_t)header_size}, codes, header))
        return 0;
    *body = (Span){at + PREFIX_SIZE + header_size, (Py_ssize_t)(length - SIZE_OF_SIZE - header_size)};
    frames->position += (Py_ssize_t)(SIZE_OF_SIZE + length);
    return 1;
}

/* Counterpart: FrameDecoder, and decode_header with PullMessageRequestHeader, for the pulls at the begin of a read.

(data, max frame size, max header size, max count) -> [(opaque, UsualPull, position behind its frame), ...] | None */
PyObject *read_pulls(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Py_buffer data;
    int64_t max_count;
    Frames frames = {0};
    Header header;
    Span body;
    PyObject *pulls;
    (void)module;
    if (count != 4 || !take_i64(args[1], &frames.max_frame_size) || !take_i64(args[2], &frames.max_header_size) ||
        !take_i64(args[3], &max_count) || PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return decline();
    frames.data = (Span){data.buf, data.len};
    pulls = PyList_New(0);
    while (pulls && max_count-- > 0 && take_request(&frames, PULLS, &header, &body)) {
        PyObject *fields = pull_of(&header.ext), *pull;
        if (!fields)
            break;
        pull = Py_BuildValue("(LNn)", (long long)header.opaque, fields, frames.position);
        if (!pull || PyList_Append(pulls, pull) < 0) {
            Py_XDECREF(pull);
            Py_CLEAR(pulls);
            break;
        }
        Py_DECREF(pull);
    }
    PyBuffer_Release(&data);
    if (!pulls || PyErr_Occurred()) {
        Py_XDECREF(pulls);
        return decline();
    }
    return pulls;
}
