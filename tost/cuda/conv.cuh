// conv.cuh: convolutions over time, channel by channel, with --conv 4:   y[t] = Σ_{k<4} weight[k] x[t-3+k]
//     dx[t] = Σ_k weight[k] dy[t+3-k],   dweight[k] = Σ_t x[t] dy[t+3-k]
//
// x[-3] to x[-1] are in the state before the pass. Backward counts them among its rows: their dx is the gradient of
// that state. The gradient of the state after the pass is added to the dx of the last three rows.
#pragma once

#include "tost/cuda/reduce.cuh"

constexpr int CONV_WIDTH = TOST_CONV_WIDTH, CONV_BEFORE = CONV_WIDTH - 1;   // taps; rows that a state holds
constexpr int CONV_RUN = 8, CONV_BACKWARD_VEC = 2;   // of a thread at once: tokens; neighboring channels in backward
template <typename S> constexpr int CONV_FORWARD_VEC = 8 / sizeof(S);   // neighboring channels in forward: 8 bytes

template <typename S> struct Conv {
    int B, T, C;
    S* y; const S* x;                // (B,T,C)
    const float* weight;             // (C,1,4)
    PassStates state;
    size_t state_size, offset;       // of a sequence, and of the convolution's rows in it
    // backward only
    S* dx; const S* dy;              // (B,T,C)
    PassStates adjoint;
    float* partial;                  // (blocks,C,4): each block's sum for dweight
};

// Offsets of token t and channel c of sequence b: in (B,T,C), and for t < 0 in the states. Rows fit in 32 bits.
template <typename S> __device__ inline size_t conv_row(const Conv<S>& args, int b, int t, int c) {
    return (size_t)(unsigned)(b * args.T + t) * (unsigned)args.C + c;
}
template <typename S> __device__ inline size_t conv_before(const Conv<S>& args, int b, int t, int c) {
    return b * args.state_size + args.offset + (t + CONV_BEFORE) * args.C + c;
}

// VEC channels of token t, which for t < 0 are in `state`; zeros if there are none. WHOLE: all are in p.
template <bool WHOLE, int VEC, typename S>
__device__ inline void conv_load(float (&row)[VEC], const S* p, const double* state, const Conv<S>& args, int b, int t,
                                 int c) {
    const int inside = args.C - c;
    if (WHOLE || t >= 0)
        load_part<WHOLE>(row, p + conv_row(args, b, t, c), t < args.T ? inside : 0);
    else UNROLL for (int i = 0; i < VEC; i++)
        row[i] = state && i < inside ? (float)state[conv_before(args, b, t, c) + i] : 0.0f;
}

template <bool WHOLE, int VEC, typename S>
__device__ inline void conv_store(S* p, double* state, const float (&row)[VEC], const Conv<S>& args, int b, int t,
                                  int c) {
    const int inside = args.C - c;
    if (WHOLE || t >= 0) store_part<WHOLE>(p + conv_row(args, b, t, c), row, t < args.T ? inside : 0);
    else UNROLL for (int i = 0; i < VEC; i++)
        if (state && i < inside) state[conv_before(args, b, t, c) + i] = row[i];
}

// The filters of VEC channels from c on; zeros past the last channel
template <int VEC, typename S>
__device__ inline void conv_weights(float (&weight)[VEC][CONV_WIDTH], const Conv<S>& args, int c) {
    UNROLL for (int i = 0; i < VEC; i++)
        if (c + i < args.C) load_pack<CONV_WIDTH>(weight[i], args.weight + (c + i) * CONV_WIDTH);
}

// Whether tokens t0 to end - 1 are inside of the pass, and so are the channels.
template <int VEC, typename S> __device__ inline bool conv_whole(const Conv<S>& args, int t0, int end) {
    return t0 >= 0 && end <= args.T && args.C % VEC == 0;
}

// y of CONV_RUN tokens from t0 on, and the state after the pass. WHOLE: all tokens are in the pass; zeros before it.
template <bool WHOLE, int VEC, typename S>
__device__ inline void conv_run_forward(const float (&weight)[VEC][CONV_WIDTH], const Conv<S>& args, int b, int t0,
                                        int c) {
    float x[CONV_RUN + CONV_BEFORE][VEC] = {};   // from token t0 - 3 on
    UNROLL for (int j = 0; j < CONV_RUN + CONV_BEFORE; j++)
        if (!WHOLE || j >= CONV_BEFORE || t0 > 0)
            conv_load<WHOLE>(x[j], args.x, args.state.start, args, b, t0 + j - CONV_BEFORE, c);
    UNROLL for (int j = 0; j < CONV_RUN; j++) {
        float y[VEC] = {};
        UNROLL for (int i = 0; i < VEC; i++)
            UNROLL for (int k = 0; k < CONV_WIDTH; k++) y[i] += weight[i][k] * x[j + k][i];
        conv_store<WHOLE>(args.y, NULL, y, args, b, t0 + j, c);
    }
    for (int t = args.T - CONV_BEFORE; !WHOLE && args.state.end && t0 + CONV_RUN >= args.T && t < args.T; t++) {
        conv_load<false>(x[0], args.x, args.state.start, args, b, t, c);
        conv_store<false>(args.y, args.state.end, x[0], args, b, t - args.T, c);
    }
}

// dx of CONV_RUN tokens from t0 on; dweight +=. All loads come before the first store.
template <bool WHOLE, int VEC, typename S>
__device__ inline void conv_run_backward(float (&dweight)[VEC][CONV_WIDTH], const float (&weight)[VEC][CONV_WIDTH],
                                         const Conv<S>& args, int b, int t0, int c) {
    float dy[CONV_RUN + CONV_BEFORE][VEC], x[CONV_RUN][VEC];   // from token t0 on
    UNROLL for (int j = 0; j < CONV_RUN + CONV_BEFORE; j++)
        conv_load<WHOLE>(dy[j], args.dy, NULL, args, b, t0 + j, c);
    UNROLL for (int j = 0; j < CONV_RUN; j++) conv_load<WHOLE>(x[j], args.x, args.state.start, args, b, t0 + j, c);
    UNROLL for (int j = 0; j < CONV_RUN; j++) {
        const int t = t0 + j;
        float dx[VEC] = {};
        if (!WHOLE && t < args.T && t + CONV_BEFORE >= args.T)
            conv_load<false>(dx, args.dy, args.adjoint.start, args, b, t - args.T, c);
        UNROLL for (int i = 0; i < VEC; i++)
            UNROLL for (int k = CONV_BEFORE; k >= 0; k--) {
                dx[i] += weight[i][k] * dy[j + CONV_BEFORE - k][i];
                dweight[i][k] += x[j][i] * dy[j + CONV_BEFORE - k][i];
            }
        conv_store<WHOLE>(args.dx, args.adjoint.end, dx, args, b, t, c);
    }
}

// Blocks loop over runs. With 768 channels, 4 blocks fit on a multiprocessor. Minimum traffic per row: 2C (x) + 2C (y).
template <typename S> __global__ void __launch_bounds__(256, 3) conv_forward_kernel(Conv<S> args, int runs) {
    constexpr int VEC = CONV_FORWARD_VEC<S>;
    for (int c = threadIdx.x * VEC; c < args.C; c += blockDim.x * VEC) {
        float weight[VEC][CONV_WIDTH] = {};
        conv_weights(weight, args, c);
        for (int run = blockIdx.x; run < args.B * runs; run += gridDim.x) {
            const int b = run / runs, t0 = run % runs * CONV_RUN;
            const bool with_state = (args.state.start || args.state.end) && (t0 == 0 || t0 + CONV_RUN >= args.T);
            if (conv_whole<VEC>(args, t0, t0 + CONV_RUN) && !with_state)
                conv_run_forward<true>(weight, args, b, t0, c);
            else NO_UNROLL for (int i = c; i < c + VEC; i++) {   // one channel at a time, in fewer registers
                float of_channel[1][CONV_WIDTH] = {};
                conv_weights(of_channel, args, i);
                conv_run_forward<false>(of_channel, args, b, t0, i);
            }
        }
    }
}

// Runs start at token -3. Minimum traffic per row: 2C (dy) + 2C (x) + 2C (dx).
template <typename S> __global__ void __launch_bounds__(256, 3) conv_backward_kernel(Conv<S> args, int runs) {
    constexpr int VEC = CONV_BACKWARD_VEC;
    for (int c = threadIdx.x * VEC; c < args.C; c += blockDim.x * VEC) {
        float weight[VEC][CONV_WIDTH] = {}, dweight[VEC][CONV_WIDTH] = {};
        conv_weights(weight, args, c);
        for (int run = blockIdx.x; run < args.B * runs; run += gridDim.x) {
            const int b = run / runs, t0 = run % runs * CONV_RUN - CONV_BEFORE;
            if (conv_whole<VEC>(args, t0, t0 + CONV_RUN + CONV_BEFORE))
                conv_run_backward<true>(dweight, weight, args, b, t0, c);
            else conv_run_backward<false>(dweight, weight, args, b, t0, c);
        }
        UNROLL for (int i = 0; i < VEC; i++)
            if (c + i < args.C)
                store_pack<CONV_WIDTH>(args.partial + (blockIdx.x * (size_t)args.C + c + i) * CONV_WIDTH, dweight[i]);
    }
}

template <typename S> static void conv_forward(cudaStream_t stream, const Conv<S>& args) {
    const int runs = div_up(args.T, CONV_RUN), threads = channel_threads(args.C);
    const int blocks = column_blocks(conv_forward_kernel<S>, threads, (size_t)args.B * runs, 1);
    LAUNCH((conv_forward_kernel<S>), blocks, threads, 0, stream, args, runs);
}

// Puts dweight on the list `sums`, of whose space it takes (COLUMN_BLOCKS,C,4).
template <typename S> static void conv_backward(cudaStream_t stream, float* dweight, ColumnSums* sums, Conv<S> args) {
    const int runs = div_up(args.T + CONV_BEFORE, CONV_RUN), threads = channel_threads(args.C);
    const int blocks = column_blocks(conv_backward_kernel<S>, threads, (size_t)args.B * runs, 1);
    args.partial = column_sums(sums, {dweight}, blocks, args.C * CONV_WIDTH);
    LAUNCH((conv_backward_kernel<S>), blocks, threads, 0, stream, args, runs);
}
