"""CUDA source of matrix products, which the kernels of `tensor_cores.py` and `skinny.py` call.

PRODUCT is for tensor cores: C[m, n] = sum over k of A[m, k] * B[k, n], a tile of C per block. `Rows`,
`Columns` and `Windows` copy tiles of A and B to shared memory, asynchronously and STAGES - 1 steps ahead;
each warp multiplies fragments of 16x8 elements of C. Names and layouts of fragments: PTX ISA, "Matrix
multiply-accumulate operation using mma instruction"; padded rows keep the threads of a warp off each other's
banks. SKINNY is for few rows: a column of C is the work of a warp or of several. The instructions themselves
come first, so that a test can replace them by loops.
"""

INSTRUCTIONS = r"""
#if !defined(TVMFAST_INSTRUCTIONS)
#define TVMFAST_INSTRUCTIONS
#include <cuda_fp16.h>
#define INLINE __device__ __forceinline__
#define SHARED __shared__
namespace tvmfast {
INLINE int thread() { return threadIdx.x; }
INLINE unsigned shared(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
// Copies BYTES bytes to shared memory, or as many zeros; both addresses are multiples of BYTES.
template <int BYTES> INLINE void copy(void* to, const void* from, bool inside) {
  int bytes = inside ? BYTES : 0;
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(shared(to)), "l"(from), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 ::"r"(shared(to)), "l"(from), "n"(BYTES), "r"(bytes) : "memory");
}
INLINE void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> INLINE void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
INLINE void barrier() { __syncthreads(); }
// Loads a vector at once; the address is a multiple of its size.
template <class V> INLINE void read(V& to, const void* from) { to = *(const V*)from; }
// Returns what the thread of the same warp has whose number differs in the bits of `mask`.
INLINE float shuffled(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
INLINE float wide(float x) { return x; }
INLINE float wide(half x) { return __half2float(x); }
// Loads four matrices of 8 rows of 16 bytes; thread t gives the address of row t % 8 of matrix t / 8.
INLINE void load_matrices(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared(row)) : "memory");
}
// The same for matrices of 2-byte elements that are stored transposed.
INLINE void load_transposed(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared(row)) : "memory");
}
// Rounds the bits of a float32 to TF32: 10 bits of mantissa, to nearest.
INLINE unsigned tf32(unsigned bits) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
}
INLINE void multiply(float, float* c, const unsigned (&a)[4], const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
INLINE void multiply(half, float* c, const unsigned (&a)[4], const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
}  // namespace tvmfast
#endif
"""

PRODUCT = r"""
#ifndef TVMFAST_PRODUCT
#define TVMFAST_PRODUCT
namespace tvmfast {
// Copies VEC elements, or as many zeros.
template <int VEC, class T> INLINE void copy_elements(T* to, const T* from, bool inside) {
  if constexpr (VEC * sizeof(T) >= 4) copy<VEC * (int)sizeof(T)>(to, from, inside);
  else *to = inside ? *from : T(0.0f);
}
// Shared memory of a tile whose rows are along k.
template <class T, int BX, int BK> struct AlongK {
  static constexpr int ROW = BK + 16 / (int)sizeof(T), SIZE = BX * ROW;
  static constexpr bool ALONG_K = true;
};
// Shared memory of a tile of B whose rows are along n.
template <class T, int BN, int BK> struct AlongN {
  static constexpr int ROW = BN + 8, SIZE = BK * ROW;
  static constexpr bool ALONG_K = false;
};
// A matrix whose rows are along k: A[m][k], or B[n][k].
template <class T, int BX, int BK, int VEC, int THREADS, int ROWS, int K>
struct Rows : AlongK<T, BX, BK> {
  static constexpr int ACROSS = BK / VEC, STEP = THREADS / ACROSS;
  const T* from; int row, at, left;
  INLINE Rows(const T* base, int x0) : row(thread() / ACROSS), at(thread() % ACROSS * VEC) {
    from = base + (long long)(x0 + row) * K + at;
    left = ROWS - x0 - row;
  }
  INLINE void load(T* tile, int k) const {
    T* to = tile + row * this->ROW + at;
    bool inside = K % BK == 0 || k + at < K;
#pragma unroll
    for (int i = 0; i < (BX + STEP - 1) / STEP; ++i)
      if (BX % STEP == 0 || row + i * STEP < BX)
        copy_elements<VEC>(to + i * STEP * this->ROW, from + k + i * STEP * K, inside && i * STEP < left);
  }
};
// Matrices B[k][p] one after another, of an image each, n = image * P + p: VEC neighbours are of one image.
template <class T, int BN, int BK, int VEC, int THREADS, int N, int K, int P>
struct Columns : AlongN<T, BN, BK> {
  static constexpr int ACROSS = BN / VEC, STEP = THREADS / ACROSS;
  const T* from; int row, at; bool inside;
  INLINE Columns(const T* base, int n0) : row(thread() / ACROSS), at(thread() % ACROSS * VEC) {
    int n = n0 + at;
    inside = n < N;
    from = base + (long long)(n / P) * K * P + n % P + row * P;
  }
  INLINE void load(T* tile, int k) const {
    T* to = tile + row * this->ROW + at;
#pragma unroll
    for (int i = 0; i < BK / STEP; ++i) {
      bool here = inside && (K % BK == 0 || k + row + i * STEP < K);
      copy_elements<VEC>(to + i * STEP * this->ROW, from + k * P + i * STEP * P, here);
    }
  }
};
// Windows of images (C, H, W), n = (image, y, x) of an output (OH, OW), strides S, padding P, dilation D:
// k = (r, s, c) if C_LAST, where each step is of one (r, s), or else (c, r, s).
template <class T, int BN, int BK, int THREADS, int N, int C, int H, int W, int OH, int OW, int R, int S,
          int SY, int SX, int PY, int PX, int DY, int DX, bool C_LAST>
struct Windows : AlongN<T, BN, BK> {
  static constexpr int STEP = THREADS / BN, COUNT = BK / STEP;
  const T* image; int row, y0, x0; bool inside;
  INLINE Windows(const T* base, int n0) : row(thread() / BN) {
    int n = n0 + thread() % BN, p = n % (OH * OW);
    inside = n < N;
    y0 = p / OW * SY - PY; x0 = p % OW * SX - PX;
    image = base + (long long)(n / (OH * OW)) * C * H * W;
  }
  INLINE void load(T* tile, int k) const {
    T* to = tile + row * this->ROW + thread() % BN;
    T loaded[COUNT];
    const T* from[COUNT]; bool valid[COUNT];
    if constexpr (C_LAST) {
      int r = k / C / S, s = k / C % S, y = y0 + r * DY, x = x0 + s * DX;
      bool here = inside && (unsigned)y < (unsigned)H && (unsigned)x < (unsigned)W;
      const T* first = image + (k % C + row) * (H * W) + y * W + x;
#pragma unroll
      for (int i = 0; i < COUNT; ++i) { from[i] = first + i * STEP * (H * W); valid[i] = here; }
    } else {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        int at = k + row + i * STEP, c = at / (R * S), y = y0 + at % (R * S) / S * DY, x = x0 + at % S * DX;
        valid[i] = inside && c < C && (unsigned)y < (unsigned)H && (unsigned)x < (unsigned)W;
        from[i] = image + c * (H * W) + y * W + x;
      }
    }
    if constexpr (sizeof(T) >= 4) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) copy<sizeof(T)>(to + i * STEP * this->ROW, from[i], valid[i]);
    } else {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) loaded[i] = valid[i] ? *from[i] : T(0.0f);
#pragma unroll
      for (int i = 0; i < COUNT; ++i) to[i * STEP * this->ROW] = loaded[i];
    }
  }
};
// The part of a tile of C that this thread has: c[i][j][4], fragments of WM x WN elements of its warp.
template <class T, int BM, int BN, int BK, int WM, int WN, int STAGES, class A, class B>
INLINE void product(float* c, void* memory, const A& a, const B& b, int first, int last) {
  constexpr int KSTEP = 32 / (int)sizeof(T), FM = WM / 16, FN = WN / 8, SIZE = A::SIZE + B::SIZE;
  T* tiles = (T*)memory;
  const int lane = thread() % 32, warp = thread() / 32;
  const int wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
#pragma unroll
  for (int i = 0; i < FM * FN * 4; ++i) c[i] = 0.0f;
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (first + s < last) {
      a.load(tiles + s * SIZE, (first + s) * BK);
      b.load(tiles + s * SIZE + A::SIZE, (first + s) * BK);
    }
    commit();
  }
  int read = 0, write = STAGES - 1;
  for (int step = first; step < last; ++step) {
    wait<STAGES - 2>();
    barrier();
    if (step + STAGES - 1 < last) {
      a.load(tiles + write * SIZE, (step + STAGES - 1) * BK);
      b.load(tiles + write * SIZE + A::SIZE, (step + STAGES - 1) * BK);
    }
    commit();
    const T *at = tiles + read * SIZE, *bt = at + A::SIZE;
#pragma unroll
    for (int k = 0; k < BK; k += KSTEP) {
      unsigned fa[FM][4], fb[FN / 2][4];
#pragma unroll
      for (int i = 0; i < FM; ++i)
        load_matrices(fa[i], at + (wm + i * 16 + lane % 16) * A::ROW + k + lane / 16 * (KSTEP / 2));
#pragma unroll
      for (int j = 0; j < FN / 2; ++j) {
        int n = wn + j * 16;
        if constexpr (B::ALONG_K)
          load_matrices(fb[j], bt + (n + lane / 16 * 8 + lane % 8) * B::ROW + k + lane / 8 % 2 * (KSTEP / 2));
        else if constexpr (sizeof(T) == 2)
          load_transposed(fb[j], bt + (k + lane % 16) * B::ROW + n + lane / 16 * 8);
        else {
          const unsigned* from = (const unsigned*)(bt + (k + lane % 4) * B::ROW + n + lane / 4);
          fb[j][0] = from[0];
          fb[j][1] = from[4 * B::ROW];
          fb[j][2] = from[8];
          fb[j][3] = from[4 * B::ROW + 8];
        }
      }
      if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < FM * 4; ++i) fa[i / 4][i % 4] = tf32(fa[i / 4][i % 4]);
#pragma unroll
        for (int j = 0; j < FN * 2; ++j) fb[j / 4][j % 4] = tf32(fb[j / 4][j % 4]);
      }
#pragma unroll
      for (int i = 0; i < FM; ++i)
#pragma unroll
        for (int j = 0; j < FN; ++j) multiply(T(0.0f), c + (i * FN + j) * 4, fa[i], &fb[j / 2][j % 2 * 2]);
    }
    read = read + 1 == STAGES ? 0 : read + 1;
    write = write + 1 == STAGES ? 0 : write + 1;
  }
  wait<0>();
}
}  // namespace tvmfast
#endif
"""

SKINNY = r"""
#ifndef TVMFAST_SKINNY
#define TVMFAST_SKINNY
namespace tvmfast {
template <class T, int VEC> struct alignas(VEC * sizeof(T)) Vector { T at[VEC]; };
// C[m][n] of A[m][k] and B[n][k] for a block's columns n, from `first` on: SPLIT of its WARPS warps share the
// sums of a column, and have AHEAD vectors of B on their way. Thread t returns the element of row t % ROWS
// and column first + t / ROWS.
template <class T, int ROWS, int N, int K, int VEC, int WARPS, int SPLIT>
INLINE float skinny(const T* a, const T* b, int first) {
  constexpr int AHEAD = 4, STEP = SPLIT * 32 * VEC;
  SHARED float parts[WARPS * ROWS];
  const int lane = thread() % 32, warp = thread() / 32, column = first + warp / SPLIT;
  const T* from = b + (long long)column * K;
  float sums[ROWS];
#pragma unroll
  for (int m = 0; m < ROWS; ++m) sums[m] = 0.0f;
  for (int start = (warp % SPLIT * 32 + lane) * VEC; column < N && start < K; start += AHEAD * STEP) {
    Vector<T, VEC> loaded[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
      if (start + i * STEP < K) read(loaded[i], from + start + i * STEP);
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
      if (start + i * STEP < K) {
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
          Vector<T, VEC> row;
          read(row, a + m * K + start + i * STEP);
#pragma unroll
          for (int e = 0; e < VEC; ++e) sums[m] += wide(row.at[e]) * wide(loaded[i].at[e]);
        }
      }
  }
#pragma unroll
  for (int m = 0; m < ROWS; ++m) {
#pragma unroll
    for (int mask = 16; mask; mask /= 2) sums[m] += shuffled(sums[m], mask);
    if (lane == 0) parts[warp * ROWS + m] = sums[m];
  }
  barrier();
  float total = 0.0f;
  const int t = thread();
  if (t < WARPS / SPLIT * ROWS) {
#pragma unroll
    for (int i = 0; i < SPLIT; ++i) total += parts[(t / ROWS * SPLIT + i) * ROWS + t % ROWS];
  }
  return total;
}
}  // namespace tvmfast
#endif
"""
