// Types of the KV cache: how an element is kept, and as what it counts.

struct KvF32 {
    typedef float Type;
    static __device__ __forceinline__ float get(float v) { return v; }
    static __device__ __forceinline__ float put(float v) { return v; }
};

struct KvF16 { // rounded to the nearest even half
    typedef unsigned short Type;
    static __device__ __forceinline__ float get(unsigned short bits) {
        float f;
        asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
        return f;
    }
    static __device__ __forceinline__ unsigned short put(float v) {
        unsigned short bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
        return bits;
    }
};
