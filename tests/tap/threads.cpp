// The taps of a step come from several threads, as those of an engine whose heads or experts run apart.
#include "qdiff_tap.h"
#include "values.h"
#include <thread>
#include <vector>

int main() {
    values v = open_values();
    qdiff_tap *qd = QDIFF_BEGIN("an engine with threads");
    std::vector<std::thread> running;
    auto join = [&] {
        for (auto &thread : running) {
            thread.join();
        }
        running.clear();
    };
    while (next(&v)) {
        if (v.is_step) {
            join();
            QDIFF_STEP(qd, v.first, v.tokens, v.n);
        } else {
            running.emplace_back([qd, v] {
                QDIFF_ROWS(qd, v.name, v.layer, v.data, QDIFF_F32, v.rows, v.width);
                free(v.data);
            });
        }
    }
    join();
    QDIFF_END(qd);
}
