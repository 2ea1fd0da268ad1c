/* An engine that misuses the header, in the way that its argument names; after it the same engine goes on rightly. */
#include "qdiff_tap.h"
#ifndef _WIN32
#include <sys/wait.h>
#endif

static const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
static const int32_t tokens[2] = {1, 2};

static void tap(qdiff_tap *qd, const char *name, const float *data, int dtype, int ndim, const int64_t *dims,
                const int64_t *strides) {
    QDIFF_TAP(qd, name, -1, data, dtype, ndim, dims, strides);
}

/* A process that is forked, taps if it is to, and ends as an engine's worker does. */
static void forked(qdiff_tap *qd, int taps) {
    const pid_t child = fork();
    if (child == 0) {
        if (taps) {
            QDIFF_ROWS(qd, "of the child", -1, x, QDIFF_F32, 2, 4);
            QDIFF_STEP(qd, 2, tokens, 1);
        }
        QDIFF_END(qd);
        exit(0);
    }
    (void)waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
    const char *way = argc == 2 ? argv[1] : "";
    const int64_t dims[2] = {2, 4}, large[2] = {INT64_MAX, 4}, many[3] = {(int64_t)1 << 31, (int64_t)1 << 31, 4},
                  none[2] = {2, 0}, far[2] = {INT64_MAX / 2, 4}, back[2] = {-4, 1}, same[2] = {0, 0};
    const int32_t negative[2] = {1, -1};
    qdiff_tap *qd = QDIFF_BEGIN(strcmp(way, "engine") ? "an engine" : NULL);
#define WAY(name, call)       \
    if (!strcmp(way, name)) { \
        call;                 \
    }
    WAY("tokens", QDIFF_STEP(qd, 0, NULL, 2))
    WAY("count", QDIFF_STEP(qd, 0, tokens, -1))
    WAY("position", QDIFF_STEP(qd, -1, tokens, 2))
    WAY("token", QDIFF_STEP(qd, 0, negative, 2))
    QDIFF_STEP(qd, 0, tokens, 2);
    WAY("data", tap(qd, "x", NULL, QDIFF_F32, 2, dims, NULL))
    WAY("extents", tap(qd, "x", x, QDIFF_F32, 2, NULL, NULL))
    WAY("unnamed", tap(qd, NULL, x, QDIFF_F32, 2, dims, NULL))
    WAY("dtype", tap(qd, "x", x, 8, 2, dims, NULL))
    WAY("dtype-below", tap(qd, "x", x, -1, 2, dims, NULL))
    WAY("axes", tap(qd, "x", x, QDIFF_F32, 9, dims, NULL))
    WAY("large", tap(qd, "x", x, QDIFF_F32, 2, large, NULL))
    WAY("many", tap(qd, "x", x, QDIFF_F32, 3, many, NULL))
    WAY("none", tap(qd, "x", x, QDIFF_F32, 2, none, NULL))
    WAY("far", tap(qd, "x", x, QDIFF_F32, 2, dims, far))
    WAY("repeated", tap(qd, "x", x, QDIFF_F64, 2, large, same))
    WAY("back", tap(qd, "x", x, QDIFF_F32, 2, dims, back))
    WAY("rows", QDIFF_ROWS(qd, "x", -1, x, QDIFF_F32, -2, 4))
    WAY("layer", QDIFF_ROWS(qd, "x", -2, x, QDIFF_F32, 2, 4))
    WAY("append", (QDIFF_APPEND(qd, "y", -1, x, QDIFF_F32, 1, 4), QDIFF_APPEND(qd, "y", -1, x, QDIFF_F32, 1, 2)))
    QDIFF_ROWS(qd, "embed", -1, x, QDIFF_F32, 2, 4);
    WAY("fork", forked(qd, 0))
    WAY("fork-taps", forked(qd, 1))
    QDIFF_ROWS(qd, "logits", -1, x + 4, QDIFF_F32, 1, 4);
    WAY("killed", abort())
    QDIFF_END(qd);
    return 0;
}
