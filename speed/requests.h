/* Requests as requests.c reads them from the bytes of frames; only the functions of requests. */

#ifndef RUCOLA_REQUESTS_H
#define RUCOLA_REQUESTS_H

#include "speed.h"

#define PULL_MESSAGE 11
#define SEND_MESSAGE_V2 310
#define SEND_BATCH_MESSAGE 320

/* The ext fields of sends are called `a` to `m`; those of a PULL_MESSAGE have these names. */
enum {
    GROUP, TOPIC, QUEUE_ID, QUEUE_OFFSET, MAX_MSG_NUMS, SYS_FLAG, COMMIT_OFFSET, SUSPEND_TIMEOUT, SUBSCRIPTION,
    SUB_VERSION, EXPRESSION_TYPE, PULL_FIELDS
};
#define SEND_FIELDS ('m' - 'a' + 1)

/* Ext fields by their places, as raw text between their quotes. */
typedef struct {
    Span of[SEND_FIELDS > PULL_FIELDS ? SEND_FIELDS : PULL_FIELDS];
} Fields;

typedef struct {
    Fields ext;
    int64_t code, flag, opaque, version;
    int seen; /* one bit for each member of the header */
} Header;

/* The fields that sends of one message and of a batch have in common. */
typedef struct {
    Span topic;
    int64_t queue_id, sys_flag, born_timestamp, flag, reconsume_times;
} Common;

/* The frames at the begin of `data` that are not taken yet begin at `position`. */
typedef struct {
    Span data;
    Py_ssize_t position;
    int64_t max_frame_size, max_header_size;
} Frames;

enum { SENDS, PULLS };

/* Take the next frame if it is complete, its code is one of `codes`, and its header of the usual form; otherwise 0. */
int take_request(Frames *frames, int codes, Header *header, Span *body);

/* Take the fields that sends have in common; 0 if one is not of the usual form. */
int take_common(const Fields *ext, Common *common);

static inline Span field(const Fields *fields, char name) { return fields->of[name - 'a']; }

static inline int is_text(Span span, const char *text) {
    return span.size == (Py_ssize_t)strlen(text) && !memcmp(span.at, text, (size_t)span.size);
}

#endif
