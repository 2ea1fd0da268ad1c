// Steps of `decode_chain.cu` as engine/src/cuda/replay.rs and readback.rs run them, with the token's embedding as first node, and the
// head telling the best token to the host: what each part of that adds. A graph for each of two slots, captured without taps and
// then given the launches that write to its slot, whose kernels are others where a stage is tapped; before each step the parameters
// of the first node; the other slot cleared on a second stream, which also brings the slot to the host, behind events; and the host,
// which waits for the slot of the step before, reads it, and waits for the step. Each part is added in turn, and then left out alone.
//
// A step is timed as the host waits for it, and once more on the card: between events around its graph, and from the begin of its
// first kernel to the end of its last, as both stamp it. That the slots hold the same whichever way, is checked.

namespace steps {
#include "fused/embed_token.cu"

#ifdef WEIGHTS_IN_F16
typedef F16 Embedding;
#elif !defined(LARGE)
typedef Q8_0 Embedding;
#else
typedef Q6_K Embedding;
#endif

struct Slots {
    float *at[2];
    size_t bytes, spare; // written by a step, and floats among them that belong to no stage
};

// Which launches a graph has: those of no taps; those of the taps; those of no taps in whose place it was given those of the taps,
// one by one. And to see what of that is slow: given the same; given those alone that differ; given and then uploaded; updated from a
// graph captured with the taps; instantiated again from a graph that was given them; and both of the first, captured after all others.
enum Kind { PLAIN, CAPTURED, GIVEN, SAME, DIFFERING, UPLOADED, UPDATED, AGAIN, LAST, PLAIN_LAST, KINDS };
static bool has_taps(Kind kind) { return kind != PLAIN && kind != SAME && kind != PLAIN_LAST; }

struct Way {
    const char *what;
    Kind kind;
    int graphs = 2;
    bool sets = true;                                   // token and position, before each step
    bool clears = false, orders = false, copies = false; // the other slot; events and waits of the second stream; to the host
    bool lands = false, reads = false;                  // the host waits for the slot of the step before; and reads it
    bool sets_all = false;                              // the parameters of every node, before each step
};
static const Way WAYS[] = {
    {"no taps", PLAIN, 1},
    {"no taps, no parameters set", PLAIN, 1, false},
    {"no taps, of two graphs", PLAIN},
    {"taps, of two graphs that were captured with them", CAPTURED},
    {"taps, of two graphs that were given them", GIVEN},
    {"and the other slot cleared", GIVEN, 2, true, true},
    {"and events and waits between the streams", GIVEN, 2, true, true, true},
    {"and the slot copied to the host", GIVEN, 2, true, true, true, true},
    {"and the host waits for the copy of the step before", GIVEN, 2, true, true, true, true, true},
    {"and reads it: as the engine", GIVEN, 2, true, true, true, true, true, true},
    {"as the engine, but captured with taps", CAPTURED, 2, true, true, true, true, true, true},
    {"as the engine, but of one graph and slot", GIVEN, 1, true, true, true, true, true, true},
    {"as the engine, but no parameters set", GIVEN, 2, false, true, true, true, true, true},
    {"as the engine, but no slot cleared", GIVEN, 2, true, false, true, true, true, true},
    {"as the engine, but no events or waits, the host reads all the same", GIVEN, 2, true, true, false, true, false, true},
    {"as the engine, but nothing copied", GIVEN, 2, true, true, true, false, true, true},
    {"as the engine, but parameters of every node set", GIVEN, 2, true, true, true, true, true, true, true},
    {"no taps, but parameters of every node set", PLAIN, 2, true, false, false, false, false, false, true},
    {"no taps, of two graphs that were given the same", SAME},
    {"no taps, of two graphs that were captured last", PLAIN_LAST},
    {"taps, of two graphs that were given what differs", DIFFERING},
    {"taps, of two graphs that were given them, and uploaded", UPLOADED},
    {"taps, of two graphs that were updated from captured ones", UPDATED},
    {"taps, of two graphs that were given them, instantiated again", AGAIN},
    {"taps, of two graphs that were captured with them last", LAST},
    {"as the engine, but instantiated again", AGAIN, 2, true, true, true, true, true, true},
    {"as the engine, but captured with taps last", LAST, 2, true, true, true, true, true, true},
};

// A graph, and its kernels one after the other.
struct Graph {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    std::vector<cudaGraphNode_t> nodes;
    // Gives a launch to a node.
    void set(size_t i, const Launch &of) const {
        void *params = (void *)of.params.data();
        cudaKernelNodeParams to = {};
        to.func = (void *)of.kernel, to.gridDim = of.grid, to.blockDim = dim3(of.threads), to.sharedMemBytes = of.shared, to.kernelParams = &params;
        CK(cudaGraphExecKernelNodeSetParams(exec, nodes[i], &to));
    }
    // Gives launches to the nodes, and instantiates it again.
    void make_of(const std::vector<Launch> &calls) {
        for (size_t i = 0; i < calls.size(); i++) {
            void *params = (void *)calls[i].params.data();
            cudaKernelNodeParams to = {};
            to.func = (void *)calls[i].kernel, to.gridDim = calls[i].grid, to.blockDim = dim3(calls[i].threads), to.sharedMemBytes = calls[i].shared;
            to.kernelParams = &params;
            CK(cudaGraphKernelNodeSetParams(nodes[i], &to));
        }
        CK(cudaGraphExecDestroy(exec)); CK(cudaGraphInstantiate(&exec, graph, 0));
    }
};
static bool alike(const Launch &a, const Launch &b) {
    return a.kernel == b.kernel && a.params == b.params && a.grid.x == b.grid.x && a.grid.y == b.grid.y && a.threads == b.threads && a.shared == b.shared;
}
static Graph captured(const std::vector<Launch> &calls, cudaStream_t s) {
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute early[1];
    early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early[0].val.programmaticStreamSerializationAllowed = 1;
    c.stream = s, c.attrs = early;
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    for (size_t i = 0; i < calls.size(); i++) {
        void *params = (void *)calls[i].params.data();
        c.gridDim = calls[i].grid, c.blockDim = dim3(calls[i].threads), c.dynamicSmemBytes = calls[i].shared;
        c.numAttrs = i > 1; // the second waits for the first to end
        CK(cudaLaunchKernelExC(&c, calls[i].kernel, &params));
    }
    Graph g = {};
    CK(cudaStreamEndCapture(s, &g.graph)); CK(cudaGraphInstantiate(&g.exec, g.graph, 0));
    cudaGraphNode_t at;
    size_t count = 1;
    CK(cudaGraphGetRootNodes(g.graph, &at, &count));
    while (count == 1) {
        g.nodes.push_back(at);
        cudaGraphEdgeData edge;
#if CUDART_VERSION >= 13000
        CK(cudaGraphNodeGetDependentNodes(g.nodes.back(), &at, &edge, &count));
#else
        CK(cudaGraphNodeGetDependentNodes_v2(g.nodes.back(), &at, &edge, &count));
#endif
    }
    if (g.nodes.size() != calls.size()) printf("captured %zu of %zu launches in a row\n", g.nodes.size(), calls.size()), exit(1);
    return g;
}

static Launch embed(const EmbedTokenParams &p) {
    const u8 *from = (const u8 *)&p;
    return {"embed_token", 1, (const void *)embed_token<Embedding>, {from, from + sizeof(p)}, dim3(1), 256, 0};
}

// `of`: what follows the embedding, writing nothing or to either slot. Whether every way leaves the same.
static bool timed(const char *taps, const std::vector<Launch> (&of)[3], EmbedTokenParams first, const Slots &slots, const u32 *told, cudaStream_t s) {
    constexpr int STEPS_OF_ROUND = 60, UNTIMED = 10, ROUNDS = 5;
    const size_t last = of[0].size(), floats = slots.bytes / 4;
    auto calls_of = [&](int which) {
        std::vector<Launch> calls = of[which];
        calls.insert(calls.begin(), embed(first));
        return calls;
    };
    const std::vector<Launch> calls[3] = {calls_of(0), calls_of(1), calls_of(2)};
    Graph graphs[KINDS][2];
    double making[3] = {}; // microseconds: to capture a graph, to give it all launches, to instantiate it again
    size_t differing = 0, kernels = 0;
    for (int i : {0, 1}) {
        const std::vector<Launch> &plain = calls[0], &tapped = calls[1 + i];
        auto took = [&](double &us, auto make) {
            const auto start = std::chrono::steady_clock::now();
            make();
            us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
        };
        auto give = [&](Graph &graph, const std::vector<Launch> &to) { for (size_t k = 0; k <= last; k++) graph.set(k, to[k]); };
        for (Kind kind : {PLAIN, CAPTURED, GIVEN, SAME, DIFFERING, UPLOADED, UPDATED, AGAIN, LAST, PLAIN_LAST}) {
            took(making[0], [&] { graphs[kind][i] = captured(kind == CAPTURED || kind == LAST ? tapped : plain, s); });
        }
        took(making[1], [&] { give(graphs[GIVEN][i], tapped); });
        give(graphs[SAME][i], plain), give(graphs[UPLOADED][i], tapped);
        CK(cudaGraphUpload(graphs[UPLOADED][i].exec, s));
        differing = kernels = 0;
        for (size_t k = 0; k <= last; k++) {
            if (alike(plain[k], tapped[k])) continue;
            graphs[DIFFERING][i].set(k, tapped[k]), differing++, kernels += plain[k].kernel != tapped[k].kernel;
        }
        cudaGraphExecUpdateResultInfo info = {};
        if (cudaGraphExecUpdate(graphs[UPDATED][i].exec, graphs[LAST][i].graph, &info) != cudaSuccess) {
            printf("  steps: a graph is not updated from another: reason %d\n", (int)info.result);
            cudaGetLastError(), give(graphs[UPDATED][i], tapped);
        }
        took(making[2], [&] { graphs[AGAIN][i].make_of(tapped); });
    }
    CK(cudaStreamSynchronize(s));
    printf("  steps: %-11s of %zu launches %zu are others with taps, %zu of them another kernel; a graph is captured in %.0f us, given all launches in %.0f, "
           "or given them and instantiated again in %.0f\n", taps, last + 1, differing, kernels, making[0], making[1], making[2]);
    cudaStream_t beside;
    cudaEvent_t cleared[2], filled[2], arrived[2], began, ended;
    float *host[2];
    CK(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
    for (auto *events : {cleared, filled, arrived}) for (int i : {0, 1}) CK(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
    CK(cudaEventCreate(&began)); CK(cudaEventCreate(&ended));
    for (float *&at : host) CK(cudaMallocHost(&at, slots.bytes));

    bool right = true;
    auto judge = [&](bool good, const char *what) {
        if (!good) right = false, printf("steps: %s: %s  WRONG\n", taps, what);
    };
    std::vector<float> want;
    u32 token = 0;
    for (Kind kind : {CAPTURED, GIVEN, DIFFERING, UPLOADED, UPDATED, AGAIN, LAST}) {
        for (int i : {0, 1}) {
            CK(cudaMemset(slots.at[i], 0xff, slots.bytes));
            CK(cudaGraphLaunch(graphs[kind][i].exec, s));
            CK(cudaStreamSynchronize(s));
            const auto got = read(slots.at[i], floats);
            if (want.empty()) {
                want = got, token = *told;
                size_t unwritten = 0;
                for (float v : got) unwritten += std::isnan(v);
                judge(unwritten == slots.spare, "not all is written");
                judge(token == (u32)(std::max_element(got.end() - V, got.end()) - (got.end() - V)), "the token is not the best");
            }
            judge(!memcmp(got.data(), want.data(), slots.bytes) && *told == token, "another slot or token");
        }
    }
    for (Kind kind : {PLAIN, SAME, PLAIN_LAST}) {
        for (int i : {0, 1}) {
            CK(cudaGraphLaunch(graphs[kind][i].exec, s));
            CK(cudaStreamSynchronize(s));
            judge(*told == token, "another token without taps");
        }
    }

    // Stamps of each step of a round: of the first kernel, and of the last kernel's blocks.
    const int of_head = (int)(calls[0][last].grid.x * calls[0][last].grid.y), of_step = 1 + of_head;
    std::vector<Stamp> stamped((size_t)STEPS_OF_ROUND * of_step);
    Stamp *stamps;
    CK(cudaMalloc(&stamps, sizeof(Stamp) * stamped.size()));
    bool clear[2] = {};
    int turn = 0;
    volatile float seen; // what the host has read
    // Step k of a round, timed on the card where `on_card` says so; microseconds of the host, and between events.
    auto step = [&](const Way &way, int k, bool on_card, double &between) {
        const auto start = std::chrono::steady_clock::now();
        turn = way.graphs == 2 ? 1 - turn : 0;
        const Graph &graph = graphs[way.kind][turn];
        const std::vector<Launch> &launches_of = calls[has_taps(way.kind) ? 1 + turn : 0];
        if (way.clears) {
            if (clear[turn]) {
                const cudaError_t done = cudaEventQuery(cleared[turn]);
                if (done == cudaErrorNotReady) CK(cudaStreamWaitEvent(s, cleared[turn], 0));
                else CK(done);
            } else {
                CK(cudaEventRecord(cleared[turn], beside)); CK(cudaStreamWaitEvent(s, cleared[turn], 0));
                CK(cudaMemsetAsync(slots.at[turn], 0xff, slots.bytes, s));
            }
            clear[turn] = false;
        }
        if (way.sets) {
            EmbedTokenParams now = first;
            now.token = (u32)k % 1000, now.stamps = on_card ? stamps + (size_t)k * of_step : nullptr;
            graph.set(0, embed(now));
        }
        for (size_t i = 1; way.sets_all && i <= last; i++) graph.set(i, launches_of[i]);
        if (on_card && way.sets) {
            Launch head = launches_of[last];
            ((head::LmHeadParams *)head.params.data())->stamps = stamps + (size_t)k * of_step + 1;
            graph.set(last, head);
        }
        if (on_card) CK(cudaEventRecord(began, s));
        CK(cudaGraphLaunch(graph.exec, s));
        if (on_card) CK(cudaEventRecord(ended, s));
        if (way.clears && way.graphs == 2 && !clear[1 - turn]) {
            CK(cudaMemsetAsync(slots.at[1 - turn], 0xff, slots.bytes, beside)); CK(cudaEventRecord(cleared[1 - turn], beside));
            clear[1 - turn] = true;
        }
        if (way.orders) {
            CK(cudaEventRecord(filled[k % 2], s)); CK(cudaStreamWaitEvent(beside, filled[k % 2], 0));
        }
        if (way.copies) CK(cudaMemcpyAsync(host[k % 2], slots.at[turn], slots.bytes, cudaMemcpyDeviceToHost, beside));
        if (way.orders) CK(cudaEventRecord(arrived[k % 2], beside));
        if (way.lands && k > 0) CK(cudaEventSynchronize(arrived[1 - k % 2]));
        if (way.reads && k > 0) {
            float sum = 0.0f;
            for (size_t i = 0; i < floats; i += 16) sum += host[1 - k % 2][i]; // a line each
            seen = sum;
        }
        CK(cudaStreamSynchronize(s));
        const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
        if (on_card) {
            float ms;
            CK(cudaEventElapsedTime(&ms, began, ended));
            between = ms * 1e3;
        }
        return us;
    };
    std::vector<float> waited[std::size(WAYS)], between[std::size(WAYS)], whole[std::size(WAYS)];
    for (int round = 0; round < ROUNDS; round++) {
        for (const Way &way : WAYS) {
            const size_t at = &way - WAYS;
            for (bool on_card : {false, true}) {
                // Neither parameters of the ways before nor their stamps stay.
                for (int i : {0, 1}) graphs[way.kind][i].set(0, embed(first)), graphs[way.kind][i].set(last, calls[has_taps(way.kind) ? 1 + i : 0][last]);
                clear[0] = clear[1] = false;
                for (int k = 0; k < STEPS_OF_ROUND; k++) {
                    double of_events = 0;
                    const double us = step(way, k, on_card, of_events);
                    if (k < UNTIMED) continue;
                    if (on_card) between[at].push_back((float)of_events);
                    else waited[at].push_back((float)us);
                }
                CK(cudaDeviceSynchronize());
                if (way.copies && way.orders && has_taps(way.kind)) {
                    const auto got = read(slots.at[turn], floats);
                    judge(!memcmp(got.data(), host[(STEPS_OF_ROUND - 1) % 2], slots.bytes), "the host has another slot");
                }
                if (!on_card || !way.sets) continue;
                CK(cudaMemcpy(stamped.data(), stamps, sizeof(Stamp) * stamped.size(), cudaMemcpyDeviceToHost));
                for (int k = UNTIMED; k < STEPS_OF_ROUND; k++) {
                    const Stamp *of_this = &stamped[(size_t)k * of_step];
                    unsigned long long end = 0;
                    for (int i = 1; i < of_step; i++) end = std::max(end, of_this[i].ended);
                    whole[at].push_back((float)(end - of_this[0].began) * 1e-3f);
                }
            }
        }
    }
    for (const Way &way : WAYS) {
        const size_t at = &way - WAYS;
        const double host_us = median(waited[at]), events_us = median(between[at]);
        printf("  steps: %-11s %-64s median %6.1f us as the host waits for it, %+5.1f; between events %6.1f, %+5.1f; ", taps, way.what, host_us,
               host_us - median(waited[0]), events_us, events_us - median(between[0]));
        if (whole[at].empty()) printf("not stamped\n");
        else printf("from first kernel to last %6.1f, %+5.1f\n", median(whole[at]), median(whole[at]) - median(whole[0]));
    }
    for (auto &pair : graphs) for (Graph &graph : pair) { CK(cudaGraphExecDestroy(graph.exec)); CK(cudaGraphDestroy(graph.graph)); }
    for (auto *events : {cleared, filled, arrived}) for (int i : {0, 1}) CK(cudaEventDestroy(events[i]));
    CK(cudaEventDestroy(began)); CK(cudaEventDestroy(ended)); CK(cudaStreamDestroy(beside)); CK(cudaFree(stamps));
    for (float *at : host) CK(cudaFreeHost(at));
    return right;
}
} // namespace steps
