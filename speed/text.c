/* UTF-8 and Java's String.hashCode. */

#include "speed.h"

/* Return the size of the valid character that begins at `data`, 2 to 4, or 0. Valid is what CPython's strict decoder
takes: no overlong form, no surrogate, nothing above U+10FFFF. `left` is at least 1. */
static int character_size(const uint8_t *data, Py_ssize_t left) {
    uint8_t first = data[0], low = 0x80, high = 0xBF;
    int size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || size > left)
        return 0;
    if (first == 0xE0)
        low = 0xA0;
    else if (first == 0xED)
        high = 0x9F;
    else if (first == 0xF0)
        low = 0x90;
    else if (first == 0xF4)
        high = 0x8F;
    if (data[1] < low || data[1] > high)
        return 0;
    for (int i = 2; i < size; i++)
        if ((data[i] & 0xC0) != 0x80)
            return 0;
    return size;
}

int is_utf8(const uint8_t *data, Py_ssize_t size) {
    Py_ssize_t at = 0;
    while (at < size) {
        uint64_t eight;
        int length;
        for (; size - at >= 8; at += 8) { /* eight ASCII characters at a time */
            memcpy(&eight, data + at, 8);
            if (eight & 0x8080808080808080u)
                break;
        }
        while (at < size && data[at] < 0x80)
            at++;
        if (at == size)
            return 1;
        length = character_size(data + at, size - at);
        if (!length)
            return 0;
        at += length;
    }
    return 1;
}

/* Continue the hash of a text with valid UTF-8, as Java hashes it: over UTF-16. Counterpart: hashing.string_hash. */
uint32_t java_hash(uint32_t hash, const uint8_t *utf8, Py_ssize_t size) {
    Py_ssize_t at = 0;
    while (at < size) {
        /* Four ASCII characters in one step of independent products: a step of one waits for the step before it. */
        for (; size - at >= 4 && !((utf8[at] | utf8[at + 1] | utf8[at + 2] | utf8[at + 3]) & 0x80); at += 4)
            hash = hash * 923521u + utf8[at] * 29791u + utf8[at + 1] * 961u + utf8[at + 2] * 31u + utf8[at + 3];
        if (at == size)
            break;
        uint32_t first = utf8[at], code;
        int length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
        if (length > size - at)
            break;
        code = length == 1 ? first : first & (0xFFu >> (length + 1));
        for (int i = 1; i < length; i++)
            code = code << 6 | (utf8[at + i] & 0x3F);
        if (code >= 0x10000) {
            code -= 0x10000;
            hash = hash * 31 + (0xD800 + (code >> 10));
            code = 0xDC00 + (code & 0x3FF);
        }
        hash = hash * 31 + code;
        at += length;
    }
    return hash;
}
