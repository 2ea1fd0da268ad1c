/* qdiff_tap.h: writes the values that an engine computes, as a capture that qdiff judges.
 *
 *     qdiff_tap *qd = QDIFF_BEGIN("my engine");       NULL if QDIFF_DUMP is not set; the lines below then do nothing
 *     QDIFF_STEP(qd, first, tokens, n);               position of the first token; the n ids that are fed now
 *     QDIFF_ROWS(qd, "layer_out", 7, x, QDIFF_F32, n, n_embd);
 *     QDIFF_TAP(qd, "q_rope", 7, q, QDIFF_BF16, 3, dims, strides);
 *     QDIFF_APPEND(qd, "embed", -1, row, QDIFF_F32, 1, n_embd);    for an engine that computes the tokens of a step one by one
 *     QDIFF_END(qd);
 *
 * QDIFF_BEGIN makes the folder that QDIFF_DUMP names. A new dump replaces an old one in that folder. If a process cannot dump, it
 * leaves the reason in the folder, and qdiff refuses the folder. Two processes cannot dump to one folder at the same time, and a
 * process that was forked after QDIFF_BEGIN cannot tap. `qdiff run -m MODEL --subject capture:FOLDER` judges the dump;
 * docs/engine/capture-format.md has the names and shapes of the stages. QDIFF_END marks the dump as complete: qdiff does not pass
 * a dump without this mark.
 *
 * An engine that computes rows of several sequences in one pass gives the sequence of each row in each step. Arrays then hold the
 * rows of all sequences, except caches, scores and weights, which are tapped for each sequence:
 *
 *     QDIFF_SEQUENCES(qd, sequences, n);              int32_t for each row; sequences are numbered from 0 in the order in which they begin
 *     QDIFF_PREFIX(qd, 0, 2, 16);                     sequence 2 begins here, with 16 cached tokens of sequence 0
 *     QDIFF_TAKEN_BACK(qd, 1, 9);                     before this step sequence 1 was cut to its first 9 tokens: a draft was rejected
 *     QDIFF_ROWS(qd, "slots", -1, slots, QDIFF_I32, n, 1);   the cache slot that each row is written to; "positions" likewise
 *     QDIFF_TABLE(qd, 2, table, n);                   int32_t: the slots that hold the n positions of sequence 2
 *     QDIFF_TAP_OF(qd, 2, "k_cache", 7, k, QDIFF_F16, 3, dims, strides);
 *
 * Layers count from 0; the layer of a stage outside of layers is -1. Strides are in elements; NULL means row-major. Values are
 * copied before a call returns. Taps may come from several threads; a step begins when all taps of the one before have
 * returned.
 *
 * C99 and C++11; Linux, macOS, Windows; needs only the C library, and -pthread if the platform's threads need it.
 *
 * GPUs: define QDIFF_TAP_CUDA or QDIFF_TAP_HIP before the include, and give taps and steps the stream on which the engine
 * computes:
 *
 *     QDIFF_STEP_ON(qd, first, tokens, n, stream);
 *     QDIFF_TAP_ON(qd, "q_rope", 7, q, QDIFF_BF16, 3, dims, NULL, stream);
 *
 * Values are copied to the host on that stream, in the order of its work. Later calls from the host write them to the disk, so
 * the stream waits for no disk. In a stream that is being captured, copies become nodes of the graph, and every replay is dumped.
 * Call QDIFF_STEP_ON before each launch of the graph; or call it in the captured part: then the steps are counted for you, and
 * manifest.json must name the tokens. Streams that a step forks join before the next step.
 */
#ifndef QDIFF_TAP_H
#define QDIFF_TAP_H

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <direct.h>
#include <share.h>
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
#define QDIFF_PID() ((long)GetCurrentProcessId())
#else
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>
typedef pthread_mutex_t qdiff_mutex;
#define QDIFF_MUTEX_INIT(m) ((void)pthread_mutex_init(m, NULL))
#define QDIFF_MUTEX_FREE(m) ((void)pthread_mutex_destroy(m))
#define QDIFF_LOCK(m) ((void)pthread_mutex_lock(m))
#define QDIFF_UNLOCK(m) ((void)pthread_mutex_unlock(m))
#define QDIFF_MKDIR(path) mkdir(path, 0777)
#define QDIFF_PID() ((long)getpid())
#endif

/* Number format of an array's elements. */
typedef enum { QDIFF_F32, QDIFF_F64, QDIFF_F16, QDIFF_BF16, QDIFF_F8_E4M3, QDIFF_F8_E5M2, QDIFF_I32, QDIFF_I64 } qdiff_dtype;

enum { QDIFF_MOST_AXES = 8 };

/* An array: which, and how its elements lie. */
typedef struct {
    char name[96]; /* with its layer: L07.q_rope */
    int dtype;     /* a qdiff_dtype */
    int sequence;  /* whose rows it holds; -1 of those of all */
    int ndim;
    int64_t dims[QDIFF_MOST_AXES];
    int64_t strides[QDIFF_MOST_AXES];
    int row_major;
    size_t reach; /* elements from the first to the last, both included */
    size_t count;
} qdiff_array;

/* Rows that were appended to a stage of the current step, and are written when it ends. */
typedef struct qdiff_rows {
    qdiff_array array;
    char *bytes;
    size_t used, room;
    struct qdiff_rows *next;
} qdiff_rows;

/* A capture while it is written. */
typedef struct {
    long pid; /* of the process that began it: one that is forked from it has no part in it */
    char *folder;
    qdiff_mutex lock;
    FILE *bin, *lines; /* without buffers: a process that is forked has nothing to write again when it ends */
    int held;          /* keeps other processes from dumping to the folder */
    uint64_t offset;
    long step; /* of the current one, or of the last; -1 before the first */
    int open;  /* whether a step has begun and not ended */
    long long first;
    int32_t *tokens; /* NULL where nobody knows them */
    size_t n;
    qdiff_rows *appended;
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
/* The same for a rank of a run that is cut over ranks: its number from 0, and how the run was cut, such as "2" or
 * "2:heads=7+7,ffn=2432+2432,vocab=whole". It dumps to the folder `rank1` in that of QDIFF_DUMP; the names of stages are the
 * same for all ranks. */
#define QDIFF_BEGIN_RANK(engine, rank, ranks, fields) qdiff_begin_rank(engine, rank, ranks, fields)
#define QDIFF_STEP(ctx, first, tokens, n) ((ctx) ? qdiff_step(ctx, first, tokens, n) : (void)0)
#define QDIFF_TAP(ctx, name, layer, ptr, dtype, ndim, dims, strides) \
    ((ctx) ? qdiff_tap_host(ctx, name, layer, ptr, dtype, ndim, dims, strides) : (void)0)
/* An array of `rows` rows of `width` elements. */
#define QDIFF_ROWS(ctx, name, layer, ptr, dtype, rows, width) \
    ((ctx) ? qdiff_tap_rows(ctx, name, layer, ptr, dtype, rows, width) : (void)0)
/* The next rows of a stage of the current step: all that are appended to it are one array. */
#define QDIFF_APPEND(ctx, name, layer, ptr, dtype, rows, width) \
    ((ctx) ? qdiff_append(ctx, name, layer, ptr, dtype, rows, width) : (void)0)
/* Of one sequence. */
#define QDIFF_TAP_OF(ctx, sequence, name, layer, ptr, dtype, ndim, dims, strides) \
    ((ctx) ? qdiff_tap_of(ctx, sequence, name, layer, ptr, dtype, ndim, dims, strides) : (void)0)
#define QDIFF_TABLE(ctx, sequence, slots, n) ((ctx) ? qdiff_table(ctx, sequence, slots, n) : (void)0)
/* Whose the rows of the current step are, with what a sequence begins in it, and how many tokens a sequence kept before it. */
#define QDIFF_SEQUENCES(ctx, sequences, n) ((ctx) ? qdiff_sequences(ctx, sequences, n) : (void)0)
#define QDIFF_PREFIX(ctx, from, to, tokens) ((ctx) ? qdiff_prefix(ctx, from, to, tokens) : (void)0)
#define QDIFF_TAKEN_BACK(ctx, sequence, kept) ((ctx) ? qdiff_taken_back(ctx, sequence, kept) : (void)0)
/* Ends the step at once, so that whoever waits for it can read it; else the next step or QDIFF_END does. */
#define QDIFF_STEP_END(ctx) ((ctx) ? qdiff_step_end(ctx) : (void)0)
#define QDIFF_END(ctx) ((ctx) ? qdiff_end(ctx) : (void)0)

/* --- how it is done ------------------------------------------------------------------------------------------------- */

/* Text that is put together and then written at once. */
typedef struct {
    char *at;
    size_t used, room;
    int lost; /* for want of memory */
} qdiff_text;

static inline void qdiff_add(qdiff_text *text, const char *bytes, size_t n) {
    if (!text->lost && text->room - text->used < n) {
        size_t room = text->room * 2 + n + 256;
        char *larger = (char *)realloc(text->at, room);
        if (larger) {
            text->at = larger;
            text->room = room;
        } else {
            text->lost = 1;
        }
    }
    if (!text->lost && n) {
        memcpy(text->at + text->used, bytes, n);
        text->used += n;
    }
}

/* Adds what printf makes of it, of no more than 255 letters. */
static inline void qdiff_say(qdiff_text *text, const char *format, ...) {
    char words[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(words, sizeof words, format, args);
    va_end(args);
    qdiff_add(text, words, strlen(words));
}

/* Adds `string` as a string of JSON. */
static inline void qdiff_string(qdiff_text *text, const char *string) {
    qdiff_add(text, "\"", 1);
    for (; *string; string++) {
        unsigned char c = (unsigned char)*string;
        if (c == '"' || c == '\\') {
            qdiff_say(text, "\\%c", c);
        } else if (c < ' ') {
            qdiff_say(text, "\\u%04x", c);
        } else {
            qdiff_add(text, string, 1);
        }
    }
    qdiff_add(text, "\"", 1);
}

/* Writes the text as a line, and frees it; gives 0 where that failed. */
static inline int qdiff_line(FILE *out, qdiff_text *text) {
    int whole;
    qdiff_add(text, "\n", 1);
    whole = !text->lost && fwrite(text->at, 1, text->used, out) == text->used;
    free(text->at);
    return whole;
}

/* FOLDER/NAME, or NULL without memory; the caller frees it. */
static inline char *qdiff_path(const char *folder, const char *name) {
    size_t room = strlen(folder) + strlen(name) + 2;
    char *path = (char *)malloc(room);
    if (path) {
        (void)snprintf(path, room, "%s/%s", folder, name);
    }
    return path;
}

static inline FILE *qdiff_file(const char *folder, const char *name, const char *mode) {
    char *path = qdiff_path(folder, name);
    FILE *file = path ? fopen(path, mode) : NULL;
    free(path);
    return file;
}

static inline int qdiff_is_there(const char *folder, const char *name) {
    FILE *file = qdiff_file(folder, name, "r");
    if (file) {
        fclose(file);
    }
    return file != NULL;
}

/* Removes FOLDER/NAME; gives 0 where it is still there. */
static inline int qdiff_removed(const char *folder, const char *name) {
    char *path = qdiff_path(folder, name);
    int gone = path && (remove(path) == 0 || errno == ENOENT);
    free(path);
    return gone;
}

/* Says that nothing is dumped: on stderr, and in the folder, which qdiff then refuses with these words. What is in the folder
 * is of an earlier run. */
static inline void qdiff_refuse(const char *folder, const char *words) {
    FILE *file = qdiff_file(folder, "capture.trouble", "wb");
    int told = file && fprintf(file, "%s\n", words) > 0;
    told = file && fclose(file) == 0 && told;
    fprintf(stderr, "qdiff_tap: %s; nothing is dumped to QDIFF_DUMP=%s\n", words, folder);
    if (!told && !qdiff_removed(folder, "capture.jsonl") &&
        (qdiff_is_there(folder, "capture.jsonl") || qdiff_is_there(folder, "manifest.json"))) {
        /* Whoever judges the folder next would take the values of an earlier run for those of this one. */
        fprintf(stderr, "qdiff_tap: the capture in the folder is of an earlier run and cannot be removed: the engine ends here\n");
        exit(EXIT_FAILURE);
    }
}

/* Says that the dump is not what it should be: on stderr, and in the dump, which qdiff then refuses with these words. */
static inline void qdiff_trouble(qdiff_tap *ctx, const char *format, ...) {
    qdiff_text line = {NULL, 0, 0, 0};
    char words[256];
    va_list args;
    if (ctx->failed) {
        return;
    }
    ctx->failed = 1;
    va_start(args, format);
    (void)vsnprintf(words, sizeof words, format, args);
    va_end(args);
    fprintf(stderr, "qdiff_tap: %s\n", words);
    qdiff_say(&line, "{\"trouble\":");
    qdiff_string(&line, words);
    qdiff_say(&line, "}");
    if (!qdiff_line(ctx->lines, &line)) {
        qdiff_refuse(ctx->folder, words);
    }
}

/* Whether another process began the dump; says so once. Before the lock is taken, which that process may have held. */
static inline int qdiff_forked(qdiff_tap *ctx) {
    char words[192];
    if (ctx->pid == QDIFF_PID()) {
        return 0;
    }
    if (!ctx->failed) {
        ctx->failed = 1;
        (void)snprintf(words, sizeof words,
                       "process %ld taps the dump that process %ld began before it forked; call QDIFF_BEGIN after the fork, and "
                       "give each process a folder of its own",
                       QDIFF_PID(), ctx->pid);
        qdiff_refuse(ctx->folder, words);
    }
    return 1;
}

/* Keeps other processes from dumping to the folder: holds its file of elements. Gives 0 where another process does (EBUSY), or
 * the file cannot be written. */
static inline int qdiff_own(qdiff_tap *ctx, const char *path) {
#ifdef _WIN32
    ctx->bin = _fsopen(path, "wb", _SH_DENYWR);
    errno = !ctx->bin && errno == EACCES ? EBUSY : errno;
    return ctx->bin != NULL;
#else
    int held = open(path, O_WRONLY | O_CREAT, 0666);
    if (held < 0) {
        return 0;
    }
    (void)fcntl(held, F_SETFD, FD_CLOEXEC);
    /* On a file system without locks, whoever comes last has the folder. */
    if (flock(held, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        close(held);
        errno = EBUSY;
        return 0;
    }
    ctx->held = held;
    return 1;
#endif
}

static inline void qdiff_let_go(int held) {
#ifndef _WIN32
    if (held >= 0) {
        (void)flock(held, LOCK_UN); /* else a process that was forked and goes on would keep it */
        close(held);
    }
#else
    (void)held;
#endif
}

/* A word that no other dump has, but by accident. */
static inline unsigned long long qdiff_nonce(const void *somewhere) {
    static unsigned long long dumps = 0;
    unsigned long long parts[5], hash = 14695981039346656037ULL;
    const unsigned char *bytes = (const unsigned char *)parts;
    size_t i;
    parts[0] = (unsigned long long)time(NULL);
    parts[1] = (unsigned long long)clock();
    parts[2] = (unsigned long long)QDIFF_PID();
    parts[3] = (unsigned long long)(uintptr_t)somewhere;
    parts[4] = ++dumps;
    for (i = 0; i < sizeof parts; i++) {
        hash = (hash ^ bytes[i]) * 1099511628211ULL;
    }
    return hash;
}

/* The first line: what the manifest says, and which dump this is. */
static inline int qdiff_head(qdiff_tap *ctx, const char *engine, int rank, const char *ranks, const char *fields) {
    const char *run = getenv("QDIFF_RUN");
    qdiff_text line = {NULL, 0, 0, 0};
    qdiff_say(&line, "{\"schema_version\":%d,\"dump\":{\"nonce\":\"%016llx\",\"started\":%lld,\"pid\":%ld,\"closes\":true",
              ranks ? 4 : 3, qdiff_nonce(ctx), (long long)time(NULL), ctx->pid);
    if (run && *run) {
        qdiff_say(&line, ",\"run\":");
        qdiff_string(&line, run);
    }
    qdiff_say(&line, "},\"engine\":");
    qdiff_string(&line, engine);
    if (ranks) {
        qdiff_say(&line, ",\"rank\":%d,\"ranks\":", rank);
        qdiff_string(&line, ranks);
    }
    if (fields && *fields) {
        qdiff_say(&line, ",");
        for (; *fields; fields++) {
            /* JSON may be on several lines, and the first line of a capture may not. */
            qdiff_add(&line, *fields == '\n' || *fields == '\r' ? " " : fields, 1);
        }
    }
    qdiff_say(&line, "}");
    return qdiff_line(ctx->lines, &line);
}

/* Takes the folder for this dump; gives NULL, or why it cannot be taken. */
static inline const char *qdiff_take(qdiff_tap *ctx) {
    char *path = qdiff_path(ctx->folder, "capture.bin");
    const int why = path && qdiff_own(ctx, path) ? 0 : errno;
    free(path);
    if (why) {
        return why == EBUSY ? "another dump to the folder has not ended; give each process a folder of its own"
                            : "capture.bin cannot be written";
    }
    /* Without its lines an old capture cannot be judged, even if this process ends now. A manifest.json, which no tap writes,
     * is not removed. */
    if (qdiff_is_there(ctx->folder, "capture.jsonl") && qdiff_is_there(ctx->folder, "manifest.json")) {
        return "the folder holds a capture of an earlier run, with a manifest.json; remove the folder, or name another one";
    }
    if (!qdiff_removed(ctx->folder, "capture.jsonl")) {
        return "the capture of an earlier run cannot be removed";
    }
#ifndef _WIN32
    ctx->bin = qdiff_file(ctx->folder, "capture.bin", "wb");
#endif
    ctx->lines = qdiff_file(ctx->folder, "capture.jsonl", "wb");
    if (!ctx->bin || !ctx->lines) {
        return "its files cannot be written";
    }
    setvbuf(ctx->bin, NULL, _IONBF, 0);
    setvbuf(ctx->lines, NULL, _IONBF, 0);
    return NULL;
}

static inline qdiff_tap *qdiff_begin_in(const char *folder, const char *engine, int rank, const char *ranks,
                                        const char *fields) {
    const char *why;
    qdiff_tap *ctx;
    (void)QDIFF_MKDIR(folder); /* if it is there, all the better; if it cannot be made, no file can */
    ctx = (qdiff_tap *)calloc(1, sizeof *ctx);
    if (ctx) {
        ctx->pid = QDIFF_PID();
        ctx->step = ctx->held = -1;
        ctx->tail = &ctx->head;
        ctx->folder = (char *)malloc(strlen(folder) + 1);
    }
    if (!ctx || !ctx->folder) {
        why = "there is no memory";
    } else {
        strcpy(ctx->folder, folder);
        why = engine ? qdiff_take(ctx) : "QDIFF_BEGIN has no name for the engine";
    }
    if (!why && !qdiff_head(ctx, engine, rank, ranks, fields)) {
        why = "capture.jsonl cannot be written";
    }
    /* Until here the folder has no values, and until the end of this line qdiff refuses it. */
    if (!why && !qdiff_removed(folder, "capture.trouble")) {
        why = "capture.trouble cannot be removed";
    }
    if (!why) {
        QDIFF_MUTEX_INIT(&ctx->lock);
        return ctx;
    }
    qdiff_refuse(folder, why);
    if (ctx) {
        if (ctx->lines) {
            fclose(ctx->lines);
        }
        if (ctx->bin) {
            fclose(ctx->bin);
        }
        qdiff_let_go(ctx->held);
        free(ctx->folder);
        free(ctx);
    }
    return NULL;
}

static inline qdiff_tap *qdiff_begin(const char *engine, const char *fields) {
    const char *folder = getenv("QDIFF_DUMP");
    return folder && *folder ? qdiff_begin_in(folder, engine, 0, NULL, fields) : NULL;
}

static inline qdiff_tap *qdiff_begin_rank(const char *engine, int rank, const char *ranks, const char *fields) {
    const char *folder = getenv("QDIFF_DUMP");
    char name[32], *own;
    qdiff_tap *ctx;
    if (!folder || !*folder) {
        return NULL;
    }
    (void)QDIFF_MKDIR(folder);
    (void)snprintf(name, sizeof name, "rank%d", rank);
    own = qdiff_path(folder, name);
    if (!own || rank < 0 || !ranks) {
        qdiff_refuse(folder, own ? "QDIFF_BEGIN_RANK has no rank, or does not say how the run was cut" : "there is no memory");
        free(own);
        return NULL;
    }
    ctx = qdiff_begin_in(own, engine, rank, ranks, fields);
    free(own);
    return ctx;
}

static inline void qdiff_write(qdiff_tap *ctx, const qdiff_array *array, const char *data, int packed);

/* Says that the current step is whole. With the lock held, as all that follow. */
static inline void qdiff_close_step(qdiff_tap *ctx) {
    qdiff_text line = {NULL, 0, 0, 0};
    qdiff_rows *rows;
    size_t i;
    while ((rows = ctx->appended) != NULL) {
        ctx->appended = rows->next;
        qdiff_write(ctx, &rows->array, rows->bytes, 1);
        free(rows->bytes);
        free(rows);
    }
    if (ctx->open && !ctx->failed) {
        qdiff_say(&line, "{\"end\":%ld", ctx->step);
        if (ctx->tokens) {
            qdiff_say(&line, ",\"first\":%lld,\"tokens\":[", ctx->first);
            for (i = 0; i < ctx->n; i++) {
                qdiff_say(&line, "%s%ld", i ? "," : "", (long)ctx->tokens[i]);
            }
            qdiff_say(&line, "]");
        }
        qdiff_say(&line, "}");
        if (!qdiff_line(ctx->lines, &line)) {
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
static inline int32_t *qdiff_tokens(qdiff_tap *ctx, long long first, const int32_t *tokens, size_t n) {
    int32_t *copy = NULL;
    size_t i;
    if (!tokens || n < 1 || n > INT32_MAX) {
        /* A negative count is a large one here. */
        qdiff_trouble(ctx, "a step of %lld tokens%s", (long long)n, tokens ? "" : ", which are NULL");
        return NULL;
    }
    if (first < 0) {
        qdiff_trouble(ctx, "a step at position %lld", first);
        return NULL;
    }
    for (i = 0; i < n; i++) {
        if (tokens[i] < 0) {
            qdiff_trouble(ctx, "a step whose token %lld is %ld", (long long)i, (long)tokens[i]);
            return NULL;
        }
    }
    copy = n <= SIZE_MAX / sizeof *copy ? (int32_t *)malloc(n * sizeof *copy) : NULL;
    if (copy) {
        memcpy(copy, tokens, n * sizeof *copy);
    } else {
        qdiff_trouble(ctx, "no memory for the tokens of a step");
    }
    return copy;
}

/* Bytes of an element; 0 of a number format that is none. */
static inline size_t qdiff_size(int dtype) {
    return dtype == QDIFF_F64 || dtype == QDIFF_I64    ? 8
           : dtype == QDIFF_F32 || dtype == QDIFF_I32  ? 4
           : dtype == QDIFF_F16 || dtype == QDIFF_BF16 ? 2
           : dtype == QDIFF_F8_E4M3 || dtype == QDIFF_F8_E5M2;
}

/* *product = *product * by + add; gives 0 where that has more bytes of `size` each than memory can have. */
static inline int qdiff_times(size_t *product, uint64_t by, size_t add, size_t size) {
    const size_t most = (size_t)(SIZE_MAX / 2) / size;
    if (add > most || (by && *product > (most - add) / by)) {
        return 0;
    }
    *product = (size_t)(*product * by) + add;
    return 1;
}

/* Describes an array; gives 0, and tells trouble, where it cannot be one. */
static inline int qdiff_describe(qdiff_tap *ctx, qdiff_array *array, const char *name, int layer, const void *data,
                                 int dtype, int ndim, const int64_t *dims, const int64_t *strides) {
    const size_t size = qdiff_size(dtype);
    int axis;
    memset(array, 0, sizeof *array);
    array->sequence = -1;
    if (!name || !*name || strlen(name) > sizeof array->name - 16) {
        qdiff_trouble(ctx, "a stage called `%.64s`: names have 1 to %d letters", name ? name : "NULL",
                      (int)sizeof array->name - 16);
        return 0;
    }
    if (layer < -1) {
        qdiff_trouble(ctx, "%s: there is no layer %d; -1 means that it is in no layer", name, layer);
        return 0;
    }
    if (layer >= 0) {
        (void)snprintf(array->name, sizeof array->name, "L%02d.%s", layer, name);
    } else {
        (void)snprintf(array->name, sizeof array->name, "%s", name);
    }
    if (!data || !dims) {
        qdiff_trouble(ctx, "%s: its %s are NULL", array->name, data ? "extents" : "elements");
        return 0;
    }
    if (!size) {
        qdiff_trouble(ctx, "%s: there is no number format %d", array->name, dtype);
        return 0;
    }
    if (ndim < 1 || ndim > QDIFF_MOST_AXES) {
        qdiff_trouble(ctx, "%s: it has %d axes; arrays have 1 to %d", array->name, ndim, (int)QDIFF_MOST_AXES);
        return 0;
    }
    array->dtype = dtype;
    array->ndim = ndim;
    array->reach = array->count = array->row_major = 1;
    for (axis = ndim - 1; axis >= 0; axis--) {
        /* Of what came so far, which is row-major up to here. */
        const size_t apart = array->count;
        const int64_t stride = strides ? strides[axis] : (int64_t)apart;
        size_t reach = 1;
        if (dims[axis] < 1 || stride < 0) {
            qdiff_trouble(ctx, "%s: axis %d has %lld elements, %lld apart", array->name, axis, (long long)dims[axis],
                          (long long)stride);
            return 0;
        }
        if (!qdiff_times(&array->count, (uint64_t)dims[axis], 0, size) ||
            !qdiff_times(&reach, (uint64_t)dims[axis] - 1, 0, size) ||
            !qdiff_times(&reach, (uint64_t)stride, array->reach, size)) {
            qdiff_trouble(ctx, "%s: with axis %d, of %lld elements %lld apart, it is larger than memory", array->name, axis,
                          (long long)dims[axis], (long long)stride);
            return 0;
        }
        array->dims[axis] = dims[axis];
        array->strides[axis] = stride;
        array->row_major = array->row_major && ((uint64_t)stride == apart || dims[axis] == 1);
        array->reach = reach;
    }
    return 1;
}

/* The elements of an array whose first one is at `data`, row-major; NULL without memory. The caller frees them. */
static inline char *qdiff_packed(const qdiff_array *array, const char *data) {
    const size_t size = qdiff_size(array->dtype);
    char *packed = (char *)malloc(array->count * size);
    int64_t index[QDIFF_MOST_AXES] = {0};
    size_t at = 0, done;
    int axis;
    for (done = 0; packed && done < array->count; done++) {
        memcpy(packed + done * size, data + at * size, size);
        for (axis = array->ndim - 1; axis >= 0; axis--) {
            if (++index[axis] < array->dims[axis]) {
                at += (size_t)array->strides[axis];
                break;
            }
            at -= (size_t)array->strides[axis] * (size_t)(array->dims[axis] - 1);
            index[axis] = 0;
        }
    }
    return packed;
}

/* Writes an array whose first element stands at `data`. `packed`: without what lies between its elements. */
static inline void qdiff_write(qdiff_tap *ctx, const qdiff_array *array, const char *data, int packed) {
    static const char *const names[] = {"f32", "f64", "f16", "bf16", "f8_e4m3", "f8_e5m2", "i32", "i64"};
    const int gaps = !array->row_major;
    const size_t bytes = (gaps && !packed ? array->reach : array->count) * qdiff_size(array->dtype);
    qdiff_text line = {NULL, 0, 0, 0};
    char *gathered = NULL;
    size_t written;
    int axis;
    if (ctx->failed) {
        return;
    }
    if (!ctx->open) {
        qdiff_trouble(ctx, "%s was tapped before a step began", array->name);
        return;
    }
    if (gaps && packed) {
        gathered = qdiff_packed(array, data);
        if (!gathered) {
            qdiff_trouble(ctx, "no memory for %s of step %ld", array->name, ctx->step);
            return;
        }
    }
    /* The line that names the elements comes when they are in the file. */
    written = fwrite(gathered ? gathered : data, 1, bytes, ctx->bin);
    free(gathered);
    if (written != bytes) {
        qdiff_trouble(ctx, "%s of step %ld cannot be written: %s", array->name, ctx->step, strerror(errno));
        return;
    }
    qdiff_say(&line, "{\"step\":%ld,\"name\":", ctx->step);
    qdiff_string(&line, array->name);
    qdiff_say(&line, ",\"dtype\":\"%s\",\"shape\":[", names[array->dtype]);
    for (axis = 0; axis < array->ndim; axis++) {
        qdiff_say(&line, "%s%lld", axis ? "," : "", (long long)array->dims[axis]);
    }
    if (gaps && !packed) {
        qdiff_say(&line, "],\"strides\":[");
        for (axis = 0; axis < array->ndim; axis++) {
            qdiff_say(&line, "%s%lld", axis ? "," : "", (long long)array->strides[axis]);
        }
    }
    qdiff_say(&line, "],\"file\":\"capture.bin\",\"offset\":%llu", (unsigned long long)ctx->offset);
    if (array->sequence >= 0) {
        qdiff_say(&line, ",\"sequence\":%d", array->sequence);
    }
    qdiff_say(&line, "}");
    if (!qdiff_line(ctx->lines, &line)) {
        qdiff_trouble(ctx, "the line of %s cannot be written: %s", array->name, strerror(errno));
    }
    ctx->offset += (uint64_t)bytes;
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

static inline void qdiff_tap_on(qdiff_tap *ctx, const char *name, int layer, const void *data, int dtype, int ndim,
                                const int64_t *dims, const int64_t *strides,
                                QDIFF_GPU(Stream_t) stream) {
    qdiff_array array;
    int fits;
    if (qdiff_forked(ctx)) {
        return;
    }
    QDIFF_LOCK(&ctx->lock);
    fits = qdiff_describe(ctx, &array, name, layer, data, dtype, ndim, dims, strides) && !ctx->failed;
    QDIFF_UNLOCK(&ctx->lock);
    if (fits) {
        qdiff_enqueue(ctx, &array, data, array.reach * qdiff_size(dtype), 0, NULL, 0, stream);
    }
}

static inline void qdiff_step_on(qdiff_tap *ctx, long long first, const int32_t *tokens, size_t n,
                                 QDIFF_GPU(Stream_t) stream) {
    int32_t *copy;
    if (qdiff_forked(ctx)) {
        return;
    }
    QDIFF_LOCK(&ctx->lock);
    copy = qdiff_tokens(ctx, first, tokens, n);
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
    if (qdiff_forked(ctx)) {
        return;
    }
    qdiff_settle(ctx, 0);
    copy = qdiff_tokens(ctx, first, tokens, n);
    qdiff_open_step(ctx, first, copy, n);
    QDIFF_UNLOCK(&ctx->lock);
}

static inline void qdiff_tap_of(qdiff_tap *ctx, int sequence, const char *name, int layer, const void *data, int dtype,
                                int ndim, const int64_t *dims, const int64_t *strides) {
    qdiff_array array;
    if (qdiff_forked(ctx)) {
        return;
    }
    qdiff_settle(ctx, 0);
    if (qdiff_describe(ctx, &array, name, layer, data, dtype, ndim, dims, strides)) {
        array.sequence = sequence;
        qdiff_write(ctx, &array, (const char *)data, 1);
    }
    QDIFF_UNLOCK(&ctx->lock);
}

static inline void qdiff_tap_host(qdiff_tap *ctx, const char *name, int layer, const void *data, int dtype, int ndim,
                                  const int64_t *dims, const int64_t *strides) {
    qdiff_tap_of(ctx, -1, name, layer, data, dtype, ndim, dims, strides);
}

static inline void qdiff_table(qdiff_tap *ctx, int sequence, const int32_t *slots, int64_t n) {
    qdiff_tap_of(ctx, sequence, "tables", -1, slots, QDIFF_I32, 1, &n, NULL);
}

/* Writes a line about the rows of the current step: `n` sequences, or the numbers of a prefix or of tokens taken back. */
static inline void qdiff_say_rows(qdiff_tap *ctx, const char *what, const int32_t *numbers, size_t n, const char *end) {
    qdiff_text line = {NULL, 0, 0, 0};
    size_t i;
    if (qdiff_forked(ctx)) {
        return;
    }
    qdiff_settle(ctx, 0);
    if (!ctx->failed && (!ctx->open || !numbers || (*end == ']' && !end[1] && ctx->tokens && n != ctx->n))) {
        qdiff_trouble(ctx, "the sequences of step %ld are not those of its tokens", ctx->step);
    }
    if (!ctx->failed) {
        qdiff_say(&line, "{\"step\":%ld,\"%s", ctx->step, what);
        for (i = 0; i < n; i++) {
            qdiff_say(&line, "%s%ld", i ? "," : "", (long)numbers[i]);
        }
        qdiff_say(&line, "%s}", end);
        if (!qdiff_line(ctx->lines, &line)) {
            qdiff_trouble(ctx, "the sequences of step %ld cannot be written: %s", ctx->step, strerror(errno));
        }
    }
    QDIFF_UNLOCK(&ctx->lock);
}

static inline void qdiff_sequences(qdiff_tap *ctx, const int32_t *sequences, size_t n) {
    qdiff_say_rows(ctx, "sequences\":[", sequences, n, "]");
}

static inline void qdiff_prefix(qdiff_tap *ctx, int32_t from, int32_t to, int32_t tokens) {
    int32_t prefix[3];
    prefix[0] = from;
    prefix[1] = to;
    prefix[2] = tokens;
    qdiff_say_rows(ctx, "prefixes\":[[", prefix, 3, "]]");
}

static inline void qdiff_taken_back(qdiff_tap *ctx, int32_t sequence, int32_t kept) {
    int32_t back[2];
    back[0] = sequence;
    back[1] = kept;
    qdiff_say_rows(ctx, "taken_back\":[[", back, 2, "]]");
}

static inline void qdiff_tap_rows(qdiff_tap *ctx, const char *name, int layer, const void *data, int dtype, int64_t rows,
                                  int64_t width) {
    int64_t dims[2];
    dims[0] = rows;
    dims[1] = width;
    qdiff_tap_host(ctx, name, layer, data, dtype, 2, dims, NULL);
}

static inline void qdiff_append(qdiff_tap *ctx, const char *name, int layer, const void *data, int dtype, int64_t rows,
                                int64_t width) {
    qdiff_array array;
    qdiff_rows **at = &ctx->appended;
    int64_t dims[2];
    size_t bytes;
    dims[0] = rows;
    dims[1] = width;
    if (qdiff_forked(ctx)) {
        return;
    }
    qdiff_settle(ctx, 0);
    if (!qdiff_describe(ctx, &array, name, layer, data, dtype, 2, dims, NULL) || ctx->failed) {
        QDIFF_UNLOCK(&ctx->lock);
        return;
    }
    array.sequence = -1;
    while (*at && strcmp((*at)->array.name, array.name) != 0) {
        at = &(*at)->next;
    }
    bytes = array.count * qdiff_size(dtype);
    if (!ctx->open) {
        qdiff_trouble(ctx, "%s was appended to before a step began", array.name);
    } else if (*at && ((*at)->array.dtype != dtype || (*at)->array.dims[1] != width)) {
        qdiff_trouble(ctx, "%s was appended rows of %lld elements to rows of %lld, or of another number format", array.name,
                      (long long)width, (long long)(*at)->array.dims[1]);
    } else {
        if (!*at) {
            *at = (qdiff_rows *)calloc(1, sizeof **at);
            if (*at) {
                (*at)->array = array;
                (*at)->array.dims[0] = 0;
                (*at)->array.count = (*at)->array.reach = 0;
            }
        }
        if (*at && (*at)->room - (*at)->used < bytes) {
            const size_t room = (*at)->room * 2 + bytes;
            char *larger = (char *)realloc((*at)->bytes, room);
            (*at)->room = larger ? room : (*at)->room;
            (*at)->bytes = larger ? larger : (*at)->bytes;
        }
        if (!*at || (*at)->room - (*at)->used < bytes) {
            qdiff_trouble(ctx, "no memory for %s of step %ld", array.name, ctx->step);
        } else {
            memcpy((*at)->bytes + (*at)->used, data, bytes);
            (*at)->used += bytes;
            (*at)->array.dims[0] += rows;
            (*at)->array.count += array.count;
            (*at)->array.reach = (*at)->array.count;
        }
    }
    QDIFF_UNLOCK(&ctx->lock);
}

static inline void qdiff_step_end(qdiff_tap *ctx) {
    if (qdiff_forked(ctx)) {
        return;
    }
    qdiff_settle(ctx, 1);
    qdiff_close_step(ctx);
    QDIFF_UNLOCK(&ctx->lock);
}

static inline void qdiff_end(qdiff_tap *ctx) {
    qdiff_text line = {NULL, 0, 0, 0};
    int freed;
    if (ctx->pid != QDIFF_PID()) {
        return; /* a process that was forked may end as its parent does */
    }
    qdiff_settle(ctx, 1);
    qdiff_close_step(ctx);
    if (fclose(ctx->bin)) {
        qdiff_trouble(ctx, "capture.bin cannot be written: %s", strerror(errno));
    }
    if (!ctx->failed) {
        qdiff_say(&line, "{\"closed\":%ld}", ctx->step + 1);
        if (!qdiff_line(ctx->lines, &line)) {
            qdiff_trouble(ctx, "the closing line cannot be written: %s", strerror(errno));
        }
    }
    fclose(ctx->lines);
    qdiff_let_go(ctx->held);
    ctx->failed = 1; /* a graph that is replayed after the end writes nothing */
    freed = qdiff_free_slots(ctx);
    QDIFF_UNLOCK(&ctx->lock);
    if (freed) {
        QDIFF_MUTEX_FREE(&ctx->lock);
        free(ctx->folder);
        free(ctx);
    }
}

#if defined(_MSC_VER)
#pragma warning(pop)
#endif
#endif
