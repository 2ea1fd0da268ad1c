#pragma once

// Types of the KV cache: how an element is kept, and as what it counts.

struct KvF32 {
    typedef float Type;
    static __device__ __forceinline__ float get(float v) { return v; }
    static __device__ __forceinline__ float put(float v) { return v; }
    // Eight elements, their address a multiple of eight elements.
    static __device__ __forceinline__ void get8(const float *from, float *out) {
        const float4 a = ((const float4 *)from)[0], b = ((const float4 *)from)[1];
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
        out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    }
    // Four, likewise.
    static __device__ __forceinline__ float4 get4(const float *from) { return *(const float4 *)from; }
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
    static __device__ __forceinline__ void get8(const unsigned short *from, float *out) {
        const uint4 v = *(const uint4 *)from;
        const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[2 * i] = get((unsigned short)words[i]);
            out[2 * i + 1] = get((unsigned short)(words[i] >> 16));
        }
    }
    static __device__ __forceinline__ float4 get4(const unsigned short *from) {
        const uint2 v = *(const uint2 *)from;
        return make_float4(get((unsigned short)v.x), get((unsigned short)(v.x >> 16)), get((unsigned short)v.y),
                           get((unsigned short)(v.y >> 16)));
    }
};
