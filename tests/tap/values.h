/* What the engines of these tests "compute": the arrays of a recorded capture, from the two files that a test wrote. A line
 * of `values.txt` is `step FIRST N ID...`, `whose N SEQUENCE...`, `prefix FROM TO TOKENS`, `keeps SEQUENCE TOKENS`, `of SEQUENCE` before a tap of that sequence,
 * `table N SLOT...` of it, or `tap NAME LAYER ROWS WIDTH`; the f32 of the taps follow each other in
 * `values.bin`. */
#ifndef VALUES_H
#define VALUES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    FILE *lines, *elements;
    /* The last line: a step, a tap, or the first letter of another word with its numbers in `tokens`. */
    int is_step;
    char kind;
    int sequence; /* of the taps that follow; -1 of all */
    long long first;
    size_t n;
    int32_t tokens[256];
    char name[64];
    int layer;
    int64_t rows, width;
    float *data; /* the caller frees it */
} values;

static inline void must(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static inline values open_values(void) {
    values v;
    v.sequence = -1;
    v.lines = fopen("values.txt", "r");
    v.elements = fopen("values.bin", "rb");
    must(v.lines && v.elements, "values.txt and values.bin are read");
    return v;
}

/* Reads the next line; gives 0 at the end. */
static inline int next(values *v) {
    char kind[8];
    size_t i;
    if (fscanf(v->lines, "%7s", kind) != 1) {
        fclose(v->lines);
        fclose(v->elements);
        return 0;
    }
    v->is_step = kind[0] == 's';
    v->kind = kind[0];
    if (kind[0] == 'w' || kind[0] == 'p' || kind[0] == 'k' || kind[0] == 'o' || kind[2] == 'b') {
        v->kind = kind[1] == 'a' ? 'b' : kind[0];
        v->n = kind[0] == 'p' ? 3 : kind[0] == 'k' ? 2 : 1;
        must(v->n > 1 || kind[0] == 'o' || fscanf(v->lines, "%zu", &v->n) == 1, "a list has a length");
        must(v->n <= 256, "a list is short");
        for (i = 0; i < v->n; i++) {
            must(fscanf(v->lines, "%d", &v->tokens[i]) == 1, "a number is one");
        }
        if (kind[0] == 'o') {
            v->sequence = v->tokens[0];
        }
        return 1;
    }
    if (v->is_step) {
        must(fscanf(v->lines, "%lld %zu", &v->first, &v->n) == 2 && v->n <= 256, "a step has a position and tokens");
        for (i = 0; i < v->n; i++) {
            must(fscanf(v->lines, "%d", &v->tokens[i]) == 1, "a token is a number");
        }
    } else {
        long long rows, width;
        must(fscanf(v->lines, "%63s %d %lld %lld", v->name, &v->layer, &rows, &width) == 4, "a tap has a name and a shape");
        v->kind = 't';
        v->rows = rows;
        v->width = width;
        v->data = (float *)malloc((size_t)(rows * width) * sizeof(float));
        must(v->data && fread(v->data, sizeof(float), (size_t)(rows * width), v->elements) == (size_t)(rows * width),
             "the elements are in values.bin");
    }
    return 1;
}

#endif
