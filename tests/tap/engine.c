/* An engine in C99 or C++11 that is dumped by the header alone. Every other tap goes through a buffer in which its elements
 * lie otherwise: transposed, or between others. */
#include "qdiff_tap.h"
#include "values.h"

int main(void) {
    values v = open_values();
    qdiff_tap *qd = QDIFF_BEGIN("an engine in C");
    int which = 0;
    while (next(&v)) {
        if (v.is_step) {
            QDIFF_STEP(qd, v.first, v.tokens, v.n);
            v.sequence = -1;
        } else if (v.kind == 'w') {
            QDIFF_SEQUENCES(qd, v.tokens, v.n);
        } else if (v.kind == 'p') {
            QDIFF_PREFIX(qd, v.tokens[0], v.tokens[1], v.tokens[2]);
        } else if (v.kind == 'k') {
            QDIFF_TAKEN_BACK(qd, v.tokens[0], v.tokens[1]);
        } else if (v.kind == 'o') {
            continue;
        } else if (v.kind == 'b') {
            QDIFF_TABLE(qd, v.sequence, v.tokens, (int64_t)v.n);
        } else if (v.sequence >= 0) {
            const int64_t dims[2] = {v.rows, v.width};
            QDIFF_TAP_OF(qd, v.sequence, v.name, v.layer, v.data, QDIFF_F32, 2, dims, NULL);
            free(v.data);
        } else if (which % 4 == 0) {
            int64_t r;
            for (r = 0; r < v.rows; r++) {
                QDIFF_APPEND(qd, v.name, v.layer, v.data + r * v.width, QDIFF_F32, 1, v.width);
            }
            which++;
            free(v.data);
        } else if (which++ % 2 == 0) {
            QDIFF_ROWS(qd, v.name, v.layer, v.data, QDIFF_F32, v.rows, v.width);
            free(v.data);
        } else {
            const int transposed = which % 4 == 0;
            const int64_t dims[2] = {v.rows, v.width};
            int64_t strides[2];
            int64_t r, c;
            float *other = (float *)calloc((size_t)(v.rows * v.width * 3), sizeof(float));
            strides[0] = transposed ? 1 : 3 * v.width;
            strides[1] = transposed ? v.rows : 3;
            for (r = 0; r < v.rows; r++) {
                for (c = 0; c < v.width; c++) {
                    other[r * strides[0] + c * strides[1]] = v.data[r * v.width + c];
                }
            }
            QDIFF_TAP(qd, v.name, v.layer, other, QDIFF_F32, 2, dims, strides);
            free(v.data);
            free(other);
        }
    }
    QDIFF_END(qd);
    return 0;
}
