/* Index files: entries chained by slot; the layout is described in rucola.store.index. */

#include "speed.h"

#define HEADER_SIZE 40
#define ENTRY_SIZE 20
#define MAX_STEPS 1024 /* of a chain, before Python takes it */

/* An index file in memory, checked: all slots are before `entries`, all entries below `room` are inside the file. */
typedef struct {
    Py_buffer view;
    uint8_t *slots, *entries;
    int64_t slot_count, room;
} File;

/* Take the file; 0 without an exception, and nothing to release, if the numbers contradict each other. */
static int take_file(PyObject *mapped, PyObject *slot_count, int flags, File *file) {
    int64_t begin;
    if (!take_i64(slot_count, &file->slot_count) || file->slot_count < 1 || file->slot_count > INT32_MAX)
        return 0;
    if (PyObject_GetBuffer(mapped, &file->view, flags) < 0)
        return 0;
    begin = HEADER_SIZE + 4 * file->slot_count;
    if (begin > file->view.len) {
        PyBuffer_Release(&file->view);
        return 0;
    }
    file->slots = (uint8_t *)file->view.buf + HEADER_SIZE;
    file->entries = (uint8_t *)file->view.buf + begin;
    file->room = (file->view.len - begin) / ENTRY_SIZE;
    return 1;
}

static int32_t seconds_since(int64_t begin, int64_t time) {
    uint64_t seconds;
    if (begin <= 0 || time <= begin)
        return 0;
    seconds = ((uint64_t)time - (uint64_t)begin) / 1000;
    return seconds > INT32_MAX ? INT32_MAX : (int32_t)seconds;
}

/* Counterpart: the part of IndexFile._put_block that writes slots and entries.

(map, slot count, number of the first entry, begin timestamp, hashes, physical offsets, store timestamps)
-> how many slots were empty | None, and nothing is written. */
PyObject *put_entries(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    File file;
    Py_buffer columns[3];
    int64_t number, begin_timestamp;
    Py_ssize_t entries, taken = 0;
    long new_slots = 0;
    int is_usual = 0;
    (void)module;
    if (count != 7 || !take_i64(args[2], &number) || !take_i64(args[3], &begin_timestamp) ||
        !take_file(args[0], args[1], PyBUF_WRITABLE, &file))
        return decline();
    while (taken < 3 && PyObject_GetBuffer(args[4 + taken], &columns[taken], PyBUF_SIMPLE) == 0)
        taken++;
    if (taken == 3) {
        const uint8_t *hashes = columns[0].buf, *offsets = columns[1].buf, *times = columns[2].buf;
        entries = columns[0].len / 4;
        is_usual = columns[0].len % 4 == 0 && columns[1].len == entries * 8 && columns[2].len == entries * 8 &&
                   number >= 1 && number <= INT32_MAX && number <= file.room && entries <= file.room - number &&
                   entries <= INT32_MAX - number;
        for (Py_ssize_t i = 0; is_usual && i < entries; i++) {
            int32_t hash;
            memcpy(&hash, hashes + 4 * i, 4);
            is_usual = hash >= 0;
        }
        for (Py_ssize_t i = 0; is_usual && i < entries; i++, number++) {
            uint8_t *slot, *entry = file.entries + number * ENTRY_SIZE;
            int32_t hash, previous;
            int64_t offset, time;
            memcpy(&hash, hashes + 4 * i, 4);
            memcpy(&offset, offsets + 8 * i, 8);
            memcpy(&time, times + 8 * i, 8);
            slot = file.slots + 4 * (hash % file.slot_count);
            previous = get_i32(slot);
            if (previous <= 0 || previous >= number) {
                previous = 0;
                new_slots++;
            }
            put_u32(entry, (uint32_t)hash);
            put_u64(entry + 4, (uint64_t)offset);
            put_u32(entry + 12, (uint32_t)seconds_since(begin_timestamp, time));
            put_u32(entry + 16, (uint32_t)previous);
            /* A crash must not leave a slot that points to no entry: the compiler keeps this order. */
            __atomic_signal_fence(__ATOMIC_SEQ_CST);
            put_u32(slot, (uint32_t)number);
        }
    }
    while (taken)
        PyBuffer_Release(&columns[--taken]);
    PyBuffer_Release(&file.view);
    return is_usual ? PyLong_FromLong(new_slots) : decline();
}

/* Counterpart: IndexFile.select_steps, for chains of at most MAX_STEPS.

(map, slot count, number of the next entry, begin timestamp, hash, max count, begin, end, before) -> physical offsets */
PyObject *select_entries(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    File file;
    int64_t following, begin_timestamp, hash, max_count, begin_ms, end_ms, before, number, found = 0, steps = 0;
    PyObject *result;
    (void)module;
    if (count != 9 || !take_i64(args[2], &following) || !take_i64(args[3], &begin_timestamp) ||
        !take_i64(args[4], &hash) || !take_i64(args[5], &max_count) || !take_i64(args[6], &begin_ms) ||
        !take_i64(args[7], &end_ms) || !take_i64(args[8], &before) || hash < 0 ||
        begin_timestamp > INT64_MAX - 1000 * (int64_t)INT32_MAX || !take_file(args[0], args[1], PyBUF_SIMPLE, &file))
        return decline();
    result = PyList_New(0);
    if (following > file.room)
        following = file.room;
    number = get_i32(file.slots + 4 * (hash % file.slot_count));
    while (result && 0 < number && number < following && found < max_count) {
        if (++steps > MAX_STEPS) { /* Python walks a long chain in slices */
            Py_CLEAR(result);
            break;
        }
        const uint8_t *entry = file.entries + number * ENTRY_SIZE;
        int64_t offset = get_i64(entry + 4), seconds = get_i32(entry + 12), time = begin_timestamp + seconds * 1000;
        if (seconds < 0)
            break;
        if (get_i32(entry) == hash && begin_ms <= time && time <= end_ms && offset < before) {
            PyObject *item = PyLong_FromLongLong(offset);
            if (!item || PyList_Append(result, item) < 0)
                Py_CLEAR(result);
            Py_XDECREF(item);
            found++;
        }
        if (time < begin_ms)
            break;
        following = number;
        number = get_i32(entry + 16);
    }
    PyBuffer_Release(&file.view);
    return result ? result : decline();
}
