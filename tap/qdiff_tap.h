/* qdiff_tap.h: writes what an engine computes as a capture that qdiff judges.
 *
 *     qdiff_tap *qd = QDIFF_BEGIN("my engine");       NULL, and nothing is done below, where QDIFF_DUMP is not set
 *     QDIFF_STEP(qd, first, tokens, n);               position of the first token; the n ids that are fed now
 *     QDIFF_ROWS(qd, "layer_out", 7, x, QDIFF_F32, n, n_embd);
 *     QDIFF_TAP(qd, "q_rope", 7, q, QDIFF_BF16, 3, dims, strides);
 *     QDIFF_END(qd);
 *
 * The folder that QDIFF_DUMP names is made, and must not hold a capture yet. `qdiff run -m MODEL --subject capture:FOLDER`
 * judges it; docs/bring-your-own-engine.md says which names and shapes the stages have. Layers count from 0, and what
 * stands in no layer has layer -1. Strides are in elements; NULL says row-major. Values are copied before a call returns.
 * Taps may come from several threads; a step begins when all taps of the one before have returned.
 *
 * C99 and C++11; Linux, macOS, Windows; nothing but the C library, and -pthread where the platform's threads want it.
 *
 * GPUs: define QDIFF_TAP_CUDA or QDIFF_TAP_HIP before the include, and give taps and steps the stream on which the engine
 * computes:
 *
 *     QDIFF_STEP_ON(qd, first, tokens, n, stream);
 *     QDIFF_TAP_ON(qd, "q_rope", 7, q, QDIFF_BF16, 3, dims, NULL, stream);
 *
 * Values are copied to the host on that stream, behind what it computes, and written to the disk by later calls from the
 * host, so that the stream waits for no disk. In a stream that is being captured, copies become nodes of the graph, and
 * every replay is dumped: call QDIFF_STEP_ON before each launch of the graph, or within what is captured, in which case the
 * steps count themselves and manifest.json must name the tokens. Streams that a step forks join before the next step.
 */
#ifndef QDIFF_TAP_H
#define QDIFF_TAP_H

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <direct.h>
#include <windows.h>
#ifdef _MSC_VER
#pragma warning(push)
#pragma warning(disable : 4996) /* fopen and getenv are what C99 has */
#endif
typedef SRWLOCK qdiff_mutex;
#define QDIFF_MUTEX_INIT(m) InitializeSRWLock(m)
#define QDIFF_MUTEX_FREE(m) ((void)(m))
#define QDIFF_LOCK(m) AcquireSRWLockExclusive(m)
#define QDIFF_UNLOCK(m) ReleaseSRWLockExclusive(m)
#define QDIFF_MKDIR(path) _mkdir(path)
#else
#include <pthread.h>
typedef pthread_mutex_t qdiff_mutex;
#define QDIFF_MUTEX_INIT(m) ((void)pthread_mutex_init(m, NULL))
#define QDIFF_MUTEX_FREE(m) ((void)pthread_mutex_destroy(m))
#define QDIFF_LOCK(m) ((void)pthread_mutex_lock(m))
#define QDIFF_UNLOCK(m) ((void)pthread_mutex_unlock(m))
#define QDIFF_MKDIR(path) mkdir(path, 0777)
#endif

/* Number format of an array's elements. */
typedef enum { QDIFF_F32, QDIFF_F64, QDIFF_F16, QDIFF_BF16, QDIFF_F8_E4M3, QDIFF_F8_E5M2 } qdiff_dtype;

enum { QDIFF_MOST_AXES = 8 };

/* An array: which, and how its elements lie. */
typedef struct {
    char name[96]; /* with its layer: L07.q_rope */
    qdiff_dtype dtype;
    int ndim;
    int64_t dims[QDIFF_MOST_AXES];
    int64_t strides[QDIFF_MOST_AXES];
    int row_major;
    size_t reach; /* elements from the first to the last, both included */
    size_t count;
} qdiff_array;

/* A capture while it is written. */
typedef struct {
    qdiff_mutex lock;
    FILE *bin, *lines;
    uint64_t offset;
    long step; /* of the current one, or of the last; -1 before the first */
    int open;  /* whether a step has begun and not ended */
    long long first;
    int32_t *tokens; /* NULL where nobody knows them */
    size_t n;
    int failed;
    /* Of GPUs: what has come and is not written yet, its bytes, those of all places that copies go to, how many copies
     * have not come, and the places. */
    struct qdiff_item *head, **tail;
    size_t waiting, pinned;
    int on_its_way;
    struct qdiff_slot *slots;
} qdiff_tap;

/* --- what is called ------------------------------------------------------------------------------------------------- */

#define QDIFF_BEGIN(engine) qdiff_begin(engine, NULL)
/* The same, with further fields of the manifest as JSON, such as "\"ubatch\": 512". */
#define QDIFF_BEGIN_WITH(engine, fields) qdiff_begin(engine, fields)
#define QDIFF_STEP(ctx, first, tokens, n) ((ctx) ? qdiff_step(ctx, first, tokens, n) : (void)0)
#define QDIFF_TAP(ctx, name, layer, ptr, dtype, ndim, dims, strides) \
    ((ctx) ? qdiff_tap_host(ctx, name, layer, ptr, dtype, ndim, dims, strides) : (void)0)
/* An array of `rows` rows of `width` elements. */
#define QDIFF_ROWS(ctx, name, layer, ptr, dtype, rows, width) \
    ((ctx) ? qdiff_tap_rows(ctx, name, layer, ptr, dtype, rows, width) : (void)0)
/* Ends the step at once, so that whoever waits for it can read it; else the next step or QDIFF_END does. */
#define QDIFF_STEP_END(ctx) ((ctx) ? qdiff_step_end(ctx) : (void)0)
#define QDIFF_END(ctx) ((ctx) ? qdiff_end(ctx) : (void)0)

/* --- how it is done ------------------------------------------------------------------------------------------------- */

/* Says that the dump is not what it should be: on stderr, and in the dump, which qdiff then refuses with these words. */
static inline void qdiff_trouble(qdiff_tap *ctx, const char *format, ...) {
    char words[256];
    va_list args;
    char *c;
    if (ctx->failed) {
        return;
    }
    ctx->failed = 1;
    va_start(args, format);
    (void)vsnprintf(words, sizeof words, format, args);
    va_end(args);
    for (c = words; *c; c++) {
        *c = *c == '"' || *c == '\\' || (unsigned char)*c < ' ' ? '\'' : *c;
    }
    fprintf(stderr, "qdiff_tap: %s\n", words);
    fprintf(ctx->lines, "{\"trouble\":\"%s\"}\n", words);
    fflush(ctx->lines);
}

/* Writes `text` as a string of JSON. */
static inline void qdiff_string(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            fprintf(out, "\\%c", c);
        } else if (c < ' ') {
            fprintf(out, "\\u%04x", c);
        } else {
            fputc(c, out);
        }
    }
    fputc('"', out);
}

static inline FILE *qdiff_file(const char *folder, const char *name, const char *mode) {
    size_t room = strlen(folder) + strlen(name) + 2;
    char *path = (char *)malloc(room);
    FILE *file = NULL;
    if (path) {
        (void)snprintf(path, room, "%s/%s", folder, name);
        file = fopen(path, mode);
        free(path);
    }
    return file;
}

static inline qdiff_tap *qdiff_begin(const char *engine, const char *fields) {
    const char *folder = getenv("QDIFF_DUMP");
    qdiff_tap *ctx;
    FILE *before;
    if (!folder || !*folder) {
        return NULL;
    }
    before = qdiff_file(folder, "capture.jsonl", "r");
    if (before) {
        fclose(before);
        fprintf(stderr, "qdiff_tap: QDIFF_DUMP=%s holds a capture already; nothing is dumped\n", folder);
        return NULL;
    }
    ctx = (qdiff_tap *)calloc(1, sizeof *ctx);
    if (!ctx) {
        fprintf(stderr, "qdiff_tap: no memory; nothing is dumped\n");
        return NULL;
    }
    (void)QDIFF_MKDIR(folder); /* if it is there, all the better; if it cannot be made, no file can */
    ctx->bin = qdiff_file(folder, "capture.bin", "wb");
    ctx->lines = ctx->bin ? qdiff_file(folder, "capture.jsonl", "wb") : NULL;
    if (!ctx->lines) {
        fprintf(stderr, "qdiff_tap: cannot write in QDIFF_DUMP=%s: %s; nothing is dumped\n", folder, strerror(errno));
        if (ctx->bin) {
            fclose(ctx->bin);
        }
        free(ctx);
        return NULL;
    }
    ctx->step = -1;
    ctx->tail = &ctx->head;
    QDIFF_MUTEX_INIT(&ctx->lock);
    fprintf(ctx->lines, "{\"schema_version\":3,\"engine\":");
    qdiff_string(ctx->lines, engine);
    fprintf(ctx->lines, "%s%s}\n", fields && *fields ? "," : "", fields ? fields : "");
    fflush(ctx->lines);
    return ctx;
}

/* Says that the current step is whole. With the lock held, as all that follow. */
static inline void qdiff_close_step(qdiff_tap *ctx) {
    size_t i;
    if (ctx->open && !ctx->failed) {
        fprintf(ctx->lines, "{\"end\":%ld", ctx->step);
        if (ctx->tokens) {
            fprintf(ctx->lines, ",\"first\":%lld,\"tokens\":[", ctx->first);
            for (i = 0; i < ctx->n; i++) {
                fprintf(ctx->lines, "%s%ld", i ? "," : "", (long)ctx->tokens[i]);
            }
            fputc(']', ctx->lines);
        }
        fprintf(ctx->lines, "}\n");
        if (fflush(ctx->lines)) {
            qdiff_trouble(ctx, "the end of step %ld cannot be written: %s", ctx->step, strerror(errno));
        }
    }
    ctx->open = 0;
    free(ctx->tokens);
    ctx->tokens = NULL;
}

/* Begins a step; takes `tokens`. */
static inline void qdiff_open_step(qdiff_tap *ctx, long long first, int32_t *tokens, size_t n) {
    qdiff_close_step(ctx);
    ctx->step++;
    ctx->open = 1;
    ctx->first = first;
    ctx->tokens = tokens;
    ctx->n = n;
}

/* A copy of the tokens; on failure NULL, and trouble is told. */
static inline int32_t *qdiff_tokens(qdiff_tap *ctx, const int32_t *tokens, size_t n) {
    int32_t *copy = n ? (int32_t *)malloc(n * sizeof *copy) : NULL;
    if (copy) {
        memcpy(copy, tokens, n * sizeof *copy);
    } else {
        qdiff_trouble(ctx, n ? "no memory for the tokens of a step" : "a step without tokens");
    }
    return copy;
}

static inline size_t qdiff_size(qdiff_dtype dtype) {
    return dtype == QDIFF_F64 ? 8 : dtype == QDIFF_F32 ? 4 : dtype == QDIFF_F16 || dtype == QDIFF_BF16 ? 2 : 1;
}

/* Describes an array; gives 0, and tells trouble, where it cannot be one. */
static inline int qdiff_describe(qdiff_tap *ctx, qdiff_array *array, const char *name, int layer, qdiff_dtype dtype,
                                 int ndim, const int64_t *dims, const int64_t *strides) {
    int axis;
    int64_t apart = 1;
    memset(array, 0, sizeof *array);
    if (ndim < 1 || ndim > QDIFF_MOST_AXES || strlen(name) > sizeof array->name - 16) {
        qdiff_trouble(ctx, "%.64s: arrays have 1 to %d axes, and names up to %d letters", name, (int)QDIFF_MOST_AXES,
                      (int)sizeof array->name - 16);
        return 0;
    }
    if (layer >= 0) {
        (void)snprintf(array->name, sizeof array->name, "L%02d.%s", layer, name);
    } else {
        (void)snprintf(array->name, sizeof array->name, "%s", name);
    }
    array->dtype = dtype;
    array->ndim = ndim;
    array->reach = array->count = array->row_major = 1;
    for (axis = ndim - 1; axis >= 0; axis--) {
        int64_t stride = strides ? strides[axis] : apart;
        if (dims[axis] < 1 || stride < 0) {
            qdiff_trouble(ctx, "%s: axis %d has %lld elements, %lld apart", name, axis, (long long)dims[axis],
                          (long long)stride);
            return 0;
        }
        array->dims[axis] = dims[axis];
        array->strides[axis] = stride;
        array->row_major = array->row_major && (stride == apart || dims[axis] == 1);
        array->reach += (size_t)(dims[axis] - 1) * (size_t)stride;
        array->count *= (size_t)dims[axis];
        apart *= dims[axis];
    }
    return 1;
}

/* Writes an array whose first element stands at `data`. `packed`: without what lies between its elements. */
static inline void qdiff_write(qdiff_tap *ctx, const qdiff_array *array, const char *data, int packed) {
    static const char *const names[] = {"f32", "f64", "f16", "bf16", "f8_e4m3", "f8_e5m2"};
    const size_t size = qdiff_size(array->dtype);
    size_t written, wanted;
    int axis;
    if (ctx->failed) {
        return;
    }
    if (!ctx->open) {
        qdiff_trouble(ctx, "%s was tapped before a step began", array->name);
        return;
    }
    if (array->row_major || !packed) {
        wanted = array->row_major ? array->count : array->reach;
        written = fwrite(data, size, wanted, ctx->bin);
    } else {
        int64_t index[QDIFF_MOST_AXES] = {0};
        size_t at = 0;
        wanted = array->count;
        for (written = 0; written < wanted && fwrite(data + at * size, size, 1, ctx->bin) == 1; written++) {
            for (axis = array->ndim - 1; axis >= 0; axis--) {
                at += (size_t)array->strides[axis];
                if (++index[axis] < array->dims[axis]) {
                    break;
                }
                at -= (size_t)array->strides[axis] * (size_t)array->dims[axis];
                index[axis] = 0;
            }
        }
    }
    /* The line that names the elements comes when they are in the file. */
    if (written != wanted || fflush(ctx->bin)) {
        qdiff_trouble(ctx, "%s of step %ld cannot be written: %s", array->name, ctx->step, strerror(errno));
        return;
    }
    fprintf(ctx->lines, "{\"step\":%ld,\"name\":", ctx->step);
    qdiff_string(ctx->lines, array->name);
    fprintf(ctx->lines, ",\"dtype\":\"%s\",\"shape\":[", names[array->dtype]);
    for (axis = 0; axis < array->ndim; axis++) {
        fprintf(ctx->lines, "%s%lld", axis ? "," : "", (long long)array->dims[axis]);
    }
    if (!array->row_major && !packed) {
        fprintf(ctx->lines, "],\"strides\":[");
        for (axis = 0; axis < array->ndim; axis++) {
            fprintf(ctx->lines, "%s%lld", axis ? "," : "", (long long)array->strides[axis]);
        }
    }
    fprintf(ctx->lines, "],\"file\":\"capture.bin\",\"offset\":%llu}\n", (unsigned long long)ctx->offset);
    if (fflush(ctx->lines)) {
        qdiff_trouble(ctx, "the line of %s cannot be written: %s", array->name, strerror(errno));
    }
    ctx->offset += (uint64_t)(wanted * size);
}

/* --- GPUs ------------------------------------------------------------------------------------------------------------ */

#if defined(QDIFF_TAP_CUDA) || defined(QDIFF_TAP_HIP)
#ifdef QDIFF_TAP_CUDA
#include <cuda_runtime_api.h>
#define QDIFF_GPU(name) cuda##name
#define QDIFF_GPU_CALL CUDART_CB
#define QDIFF_GPU_ALLOC(place, bytes) cudaHostAlloc(place, bytes, cudaHostAllocDefault)
#define QDIFF_GPU_FREE(place) cudaFreeHost(place)
#else
#include <hip/hip_runtime_api.h>
#define QDIFF_GPU(name) hip##name
#define QDIFF_GPU_CALL
#define QDIFF_GPU_ALLOC(place, bytes) hipHostMalloc(place, bytes, hipHostMallocDefault)
#define QDIFF_GPU_FREE(place) hipHostFree(place)
#endif
/* Bytes that may wait for the host to call before the GPU's callback writes them, and bytes that may be on their way
 * before the host waits for the stream. */
#define QDIFF_GPU_WAITING ((size_t)1 << 29)

#define QDIFF_STEP_ON(ctx, first, tokens, n, stream) ((ctx) ? qdiff_step_on(ctx, first, tokens, n, stream) : (void)0)
#define QDIFF_TAP_ON(ctx, name, layer, ptr, dtype, ndim, dims, strides, stream) \
    ((ctx) ? qdiff_tap_on(ctx, name, layer, ptr, dtype, ndim, dims, strides, stream) : (void)0)

/* Where a copy goes: for one use after the other, or of one node of a graph for all its replays. */
typedef struct qdiff_slot {
    struct qdiff_slot *next;
    qdiff_tap *ctx;
    qdiff_array array;
    void *pinned; /* NULL of a step's mark */
    size_t room, bytes;
    int captured, busy;
    long last; /* the step in which a node's copy came last */
    long long first;
    int32_t *tokens;
    size_t n;
} qdiff_slot;

/* What has come, in the order of the stream. */
typedef struct qdiff_item {
    struct qdiff_item *next;
    qdiff_slot *slot; /* of a node, else NULL */
    qdiff_array array;
    char *data; /* NULL of a step's mark */
    size_t bytes;
    long long first;
    int32_t *tokens;
    size_t n;
} qdiff_item;

/* Writes what has come. With the lock held. */
static inline void qdiff_arrived(qdiff_tap *ctx) {
    while (ctx->head) {
        qdiff_item *item = ctx->head;
        ctx->head = item->next;
        ctx->tail = ctx->head ? ctx->tail : &ctx->head;
        ctx->waiting -= item->bytes;
        if (!item->data) {
            qdiff_open_step(ctx, item->first, item->tokens, item->n);
        } else if (item->slot && item->slot->last == ctx->step) {
            qdiff_trouble(ctx, "%s came twice in step %ld: a graph was replayed without QDIFF_STEP_ON, and the last "
                               "replay alone would be seen", item->array.name, ctx->step);
        } else {
            qdiff_write(ctx, &item->array, item->data, 0);
            if (item->slot) {
                item->slot->last = ctx->step;
            }
        }
        free(item->data);
        free(item);
    }
}

/* Called by the GPU's runtime when the stream is past a copy or a mark: takes it, so that the place is free again. */
static inline void QDIFF_GPU_CALL qdiff_came(void *place) {
    qdiff_slot *slot = (qdiff_slot *)place;
    qdiff_tap *ctx = slot->ctx;
    qdiff_item *item = (qdiff_item *)calloc(1, sizeof *item);
    if (item) {
        item->slot = slot->captured ? slot : NULL;
        item->array = slot->array;
        item->first = slot->first;
        item->tokens = slot->tokens;
        item->n = slot->n;
        item->bytes = slot->pinned ? slot->bytes : 0;
        item->data = slot->pinned ? (char *)malloc(slot->bytes) : NULL;
        if (item->data) {
            memcpy(item->data, slot->pinned, slot->bytes);
        }
    }
    QDIFF_LOCK(&ctx->lock);
    if (!item || (slot->pinned && !item->data)) {
        qdiff_trouble(ctx, "no memory for %s", slot->pinned ? slot->array.name : "a step");
        free(item);
    } else {
        *ctx->tail = item;
        ctx->tail = &item->next;
        ctx->waiting += item->bytes;
    }
    if (!slot->captured) {
        slot->busy = 0;
        slot->tokens = NULL;
        ctx->on_its_way--;
    }
    if (ctx->waiting > QDIFF_GPU_WAITING || ctx->failed) {
        qdiff_arrived(ctx);
    }
    QDIFF_UNLOCK(&ctx->lock);
}

/* Waits for what is on its way, and writes it; with `all` also for the graphs that run. Takes the lock. */
static inline void qdiff_settle(qdiff_tap *ctx, int all) {
    QDIFF_LOCK(&ctx->lock);
    all = all || ctx->on_its_way > 0;
    QDIFF_UNLOCK(&ctx->lock);
    if (all) {
        (void)QDIFF_GPU(DeviceSynchronize)();
    }
    QDIFF_LOCK(&ctx->lock);
    qdiff_arrived(ctx);
}

/* A place that nothing is on its way to. With the lock held. */
static inline qdiff_slot *qdiff_free_slot(qdiff_tap *ctx, size_t bytes) {
    qdiff_slot *slot = ctx->slots;
    while (slot && (slot->captured || slot->busy || (slot->room > 0) != (bytes > 0) || slot->room < bytes)) {
        slot = slot->next;
    }
    return slot;
}

/* A new place. Without the lock: the GPU's runtime may wait here for a callback that takes it. */
static inline qdiff_slot *qdiff_new_slot(qdiff_tap *ctx, size_t bytes, QDIFF_GPU(Error_t) *error) {
    qdiff_slot *slot = (qdiff_slot *)calloc(1, sizeof *slot);
    /* Memory may be had while a stream is captured only if the thread says that it is none of the capture's. */
    QDIFF_GPU(StreamCaptureMode) mode = QDIFF_GPU(StreamCaptureModeRelaxed);
    if (slot && bytes) {
        (void)QDIFF_GPU(ThreadExchangeStreamCaptureMode)(&mode);
        *error = QDIFF_GPU_ALLOC(&slot->pinned, bytes);
        (void)QDIFF_GPU(ThreadExchangeStreamCaptureMode)(&mode);
    }
    if (slot && *error != QDIFF_GPU(Success)) {
        free(slot);
        slot = NULL;
    }
    if (slot) {
        slot->ctx = ctx;
        slot->room = bytes;
    }
    return slot;
}

/* Puts a copy of `bytes` from `data`, or without them a mark, behind what `stream` does; takes `tokens`. */
static inline void qdiff_enqueue(qdiff_tap *ctx, const qdiff_array *array, const void *data, size_t bytes,
                                 long long first, int32_t *tokens, size_t n, QDIFF_GPU(Stream_t) stream) {
    QDIFF_GPU(StreamCaptureStatus) status = QDIFF_GPU(StreamCaptureStatusNone);
    QDIFF_GPU(Error_t) error = QDIFF_GPU(StreamIsCapturing)(stream, &status);
    const int captured = status != QDIFF_GPU(StreamCaptureStatusNone);
    qdiff_slot *slot, *fresh = NULL;
    QDIFF_LOCK(&ctx->lock);
    qdiff_arrived(ctx);
    slot = captured ? NULL : qdiff_free_slot(ctx, bytes);
    if (!slot && !captured && ctx->pinned + bytes > QDIFF_GPU_WAITING) {
        QDIFF_UNLOCK(&ctx->lock);
        error = QDIFF_GPU(StreamSynchronize)(stream);
        QDIFF_LOCK(&ctx->lock);
        slot = qdiff_free_slot(ctx, bytes);
    }
    if (!slot && error == QDIFF_GPU(Success)) {
        QDIFF_UNLOCK(&ctx->lock);
        fresh = qdiff_new_slot(ctx, bytes, &error);
        QDIFF_LOCK(&ctx->lock);
        if (fresh) {
            slot = fresh;
            slot->next = ctx->slots;
            ctx->slots = slot;
            ctx->pinned += bytes;
        }
    }
    if (slot) {
        slot->captured = captured;
        slot->busy = 1;
        slot->last = -1;
        slot->bytes = bytes;
        slot->first = first;
        slot->n = n;
        slot->tokens = captured ? NULL : tokens; /* of a replay nobody knows them here */
        if (array) {
            slot->array = *array;
        }
        ctx->on_its_way += !captured;
    }
    QDIFF_UNLOCK(&ctx->lock);
    if (captured || !slot) {
        free(tokens);
    }
    /* Without the lock, for the same reason. */
    if (slot && bytes) {
        error = QDIFF_GPU(MemcpyAsync)(slot->pinned, data, bytes, QDIFF_GPU(MemcpyDefault), stream);
    }
    if (slot && error == QDIFF_GPU(Success)) {
        error = QDIFF_GPU(LaunchHostFunc)(stream, qdiff_came, slot);
    }
    if (!slot || error != QDIFF_GPU(Success)) {
        QDIFF_LOCK(&ctx->lock);
        qdiff_trouble(ctx, "%s cannot be copied: %s", array ? array->name : "the mark of a step",
                      error == QDIFF_GPU(Success) ? "no memory" : QDIFF_GPU(GetErrorString)(error));
        QDIFF_UNLOCK(&ctx->lock);
    }
}

static inline void qdiff_tap_on(qdiff_tap *ctx, const char *name, int layer, const void *data, qdiff_dtype dtype,
                                int ndim, const int64_t *dims, const int64_t *strides,
                                QDIFF_GPU(Stream_t) stream) {
    qdiff_array array;
    int fits;
    QDIFF_LOCK(&ctx->lock);
    fits = qdiff_describe(ctx, &array, name, layer, dtype, ndim, dims, strides) && !ctx->failed;
    QDIFF_UNLOCK(&ctx->lock);
    if (fits) {
        qdiff_enqueue(ctx, &array, data, array.reach * qdiff_size(dtype), 0, NULL, 0, stream);
    }
}

static inline void qdiff_step_on(qdiff_tap *ctx, long long first, const int32_t *tokens, size_t n,
                                 QDIFF_GPU(Stream_t) stream) {
    int32_t *copy;
    QDIFF_LOCK(&ctx->lock);
    copy = qdiff_tokens(ctx, tokens, n);
    QDIFF_UNLOCK(&ctx->lock);
    if (copy) {
        qdiff_enqueue(ctx, NULL, NULL, 0, first, copy, n, stream);
    }
}

/* Frees what copies went to; gives 0 where graphs that may be replayed still know it. */
static inline int qdiff_free_slots(qdiff_tap *ctx) {
    qdiff_slot *slot;
    for (slot = ctx->slots; slot; slot = slot->next) {
        if (slot->captured) {
            return 0;
        }
    }
    while ((slot = ctx->slots) != NULL) {
        ctx->slots = slot->next;
        (void)QDIFF_GPU_FREE(slot->pinned);
        free(slot);
    }
    return 1;
}
#else
static inline void qdiff_settle(qdiff_tap *ctx, int all) {
    (void)all;
    QDIFF_LOCK(&ctx->lock);
}
static inline int qdiff_free_slots(qdiff_tap *ctx) {
    (void)ctx;
    return 1;
}
#endif

/* --- calls without a stream: they wait for what is on its way ----------------------------------------------------- */

static inline void qdiff_step(qdiff_tap *ctx, long long first, const int32_t *tokens, size_t n) {
    int32_t *copy;
    qdiff_settle(ctx, 0);
    copy = qdiff_tokens(ctx, tokens, n);
    qdiff_open_step(ctx, first, copy, n);
    QDIFF_UNLOCK(&ctx->lock);
}

static inline void qdiff_tap_host(qdiff_tap *ctx, const char *name, int layer, const void *data, qdiff_dtype dtype,
                                  int ndim, const int64_t *dims, const int64_t *strides) {
    qdiff_array array;
    qdiff_settle(ctx, 0);
    if (qdiff_describe(ctx, &array, name, layer, dtype, ndim, dims, strides)) {
        qdiff_write(ctx, &array, (const char *)data, 1);
    }
    QDIFF_UNLOCK(&ctx->lock);
}

static inline void qdiff_tap_rows(qdiff_tap *ctx, const char *name, int layer, const void *data, qdiff_dtype dtype,
                                  int64_t rows, int64_t width) {
    int64_t dims[2];
    dims[0] = rows;
    dims[1] = width;
    qdiff_tap_host(ctx, name, layer, data, dtype, 2, dims, NULL);
}

static inline void qdiff_step_end(qdiff_tap *ctx) {
    qdiff_settle(ctx, 1);
    qdiff_close_step(ctx);
    QDIFF_UNLOCK(&ctx->lock);
}

static inline void qdiff_end(qdiff_tap *ctx) {
    int freed;
    qdiff_settle(ctx, 1);
    qdiff_close_step(ctx);
    fclose(ctx->bin);
    fclose(ctx->lines);
    ctx->failed = 1; /* a graph that is replayed after the end writes nothing */
    freed = qdiff_free_slots(ctx);
    QDIFF_UNLOCK(&ctx->lock);
    if (freed) {
        QDIFF_MUTEX_FREE(&ctx->lock);
        free(ctx);
    }
}

#if defined(_MSC_VER)
#pragma warning(pop)
#endif
#endif
