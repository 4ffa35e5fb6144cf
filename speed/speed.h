/* Declarations shared by the sources of rucola._speed; see module.c for the rules that all of them keep. */

#ifndef RUCOLA_SPEED_H
#define RUCOLA_SPEED_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Raised when a function changes its arguments or its result; `rucola.speed` refuses any other number. */
#define RUCOLA_SPEED_INTERFACE 12

#define MESSAGE_MAGIC 0xDAA320A7u
#define MAX_PROPERTIES_SIZE 0x7FFF
#define MIN_RECORD_SIZE 91
#define UNIT_SIZE 20

#define PREPARED 0x4 /* bits of sysFlag, see rucola.message.sysflag */
#define TRANSACTION_MASK 0xC
#define ROLLED_BACK 0xC
#define BORN_HOST_V6 0x10
#define STORE_HOST_V6 0x20

/* A range of bytes inside a buffer that outlives it. `at` is NULL if there is none. */
typedef struct {
    const uint8_t *at;
    Py_ssize_t size;
} Span;

/* The names of the fields of a DispatchRequest, interned. */
typedef struct {
    PyObject *topic, *queue_id, *queue_offset, *physical_offset, *size, *store_timestamp, *sys_flag, *tags_code,
        *unique_key, *keys;
} State;

/* Return None from a function that leaves its input to the Python code; NULL if memory is exhausted. */
PyObject *decline(void);

/* Take the bytes of a bytes object, or an int that fits. Return 1, or 0 without an exception: decline then. */
int take_bytes(PyObject *object, Span *span);
int take_i64(PyObject *object, int64_t *number);
int take_i32(PyObject *object, int32_t *number);

/* Put a new reference, or NULL after an error, into a new list. Return 0 after an error. */
static inline int put_item(PyObject *list, Py_ssize_t number, PyObject *item) {
    return item && PyList_SetItem(list, number, item) == 0;
}

/* Big-endian numbers at any address. */
static inline void put_u16(uint8_t *at, uint16_t n) { at[0] = (uint8_t)(n >> 8), at[1] = (uint8_t)n; }

static inline void put_u32(uint8_t *at, uint32_t n) {
    at[0] = (uint8_t)(n >> 24), at[1] = (uint8_t)(n >> 16), at[2] = (uint8_t)(n >> 8), at[3] = (uint8_t)n;
}

static inline void put_u64(uint8_t *at, uint64_t n) {
    put_u32(at, (uint32_t)(n >> 32));
    put_u32(at + 4, (uint32_t)n);
}

static inline uint16_t get_u16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }

static inline uint32_t get_u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint64_t get_u64(const uint8_t *at) { return (uint64_t)get_u32(at) << 32 | get_u32(at + 4); }

static inline int32_t get_i32(const uint8_t *at) { return (int32_t)get_u32(at); }

static inline int64_t get_i64(const uint8_t *at) { return (int64_t)get_u64(at); }

/* crc32.c */
void crc32_prepare(void);
uint32_t crc32_of(const uint8_t *data, size_t size);

/* text.c */
int is_utf8(const uint8_t *data, Py_ssize_t size);
uint32_t java_hash(uint32_t hash, const uint8_t *utf8, Py_ssize_t size);

/* What a message has of its own, in a batch and as a record. */
typedef struct {
    Span body, properties;
    int32_t flag;
} Own;

/* properties.c: check the sizes of the message at the begin of `left` bytes of a batch, and find its parts; return its
size, or 0. */
Py_ssize_t batch_message(const uint8_t *at, Py_ssize_t left, Own *own);

/* reads.c: whether `left` bytes begin with a whole record whose sizes agree and that states this physical offset; its
size, or 0. The rules are those of `_outline` in rucola.message.record. */
int64_t record_size(const uint8_t *at, int64_t left, int64_t physical_offset);

/* What units and index entries of a record are made of; `further` names further queues. */
typedef struct {
    Span topic, properties, tags, unique_key, keys, further;
    int64_t queue_offset, physical_offset, store_timestamp;
    int32_t queue_id;
    uint32_t sys_flag;
} Dispatched;

/* reads.c: find them in a record whose sizes agree; 0 if no queue can have its name. */
int find_dispatched(const uint8_t *at, int64_t size, Dispatched *record);

/* Growing columns of index entries. */
typedef struct {
    int32_t *hashes;
    int64_t *offsets, *times;
    Py_ssize_t count, room;
} Columns;

/* dispatch.c: add the entries of a property with keys, as one key or as words separated by blanks; 0 without memory.
`prefix` is the hash of "topic#". */
int add_keys(Columns *columns, Span keys, int has_words, uint32_t prefix, int64_t offset, int64_t time);
PyObject *columns_of(const Columns *columns); /* a new tuple of three bytes objects, or NULL */
void release_columns(Columns *columns);

/* The functions of the module. */
#define FUNCTION(name) PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t count)

FUNCTION(split_frames); /* frames.c */
FUNCTION(read_sends); /* requests.c */
FUNCTION(read_fetch);
FUNCTION(format_sends);
FUNCTION(edit_properties); /* properties.c */
FUNCTION(split_batch);
FUNCTION(encode_record); /* records.c */
FUNCTION(encode_records);
FUNCTION(units_by_queue); /* dispatch.c */
FUNCTION(index_entries);
FUNCTION(put_entries); /* index.c */
FUNCTION(select_entries);
FUNCTION(read_records); /* reads.c */
FUNCTION(read_units);
FUNCTION(decode_records);
FUNCTION(read_requests);
FUNCTION(scan_records); /* runs.c */
FUNCTION(read_run);
FUNCTION(crc32_of_ranges); /* columns.c */
FUNCTION(parse_properties);

#endif
