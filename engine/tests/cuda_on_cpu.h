// CUDA's threads on a CPU, for the kernels of tvmfast/compiler/cuda/device_code.py: a block's threads are contexts that
// take turns at barriers and at the instructions of a warp; these are as PTX's manual describes them. A copy to shared
// memory arrives when its group is waited for, not before; what is outside of the arrays, or not aligned, ends the test.
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define TVMFAST_INSTRUCTIONS
#define INLINE inline
#define SHARED static
#define __global__
#define __restrict__
#define __shared__
#define __align__(n)
#define __launch_bounds__(n)
#define uchar unsigned char
#define uint unsigned
typedef _Float16 half;
inline half __float2half_rn(float x) { return (half)x; }
using std::max;
using std::min;

struct Index { int x, y, z; };
struct Copy { char* to; const char* from; int bytes; bool inside; };
struct Thread {
  ucontext_t context;
  bool done = false;
  std::vector<std::vector<Copy>> groups{1};
  std::unique_ptr<char[]> stack{new char[1 << 16]};
};
struct Barrier { int arrived = 0, generation = 0; };
struct Warp { Barrier barrier; unsigned a[32][4], b[32][2]; const char* rows[32]; float values[32]; };
struct Array { const char* start; long long bytes; };

static Index blockIdx;
static ucontext_t scheduler;
static std::vector<Thread> threads;
static std::vector<Warp> warps;
static std::vector<Array> arrays;
static Barrier of_block;
static int current;
static std::function<void()> kernel;
alignas(64) unsigned char tiles_ptr[1 << 18];
#define threadIdx (Index{current, 0, 0})

static void fail(const char* what) { std::fprintf(stderr, "CUDA on a CPU: %s\n", what); std::abort(); }
static void yield() { swapcontext(&threads[current].context, &scheduler); }
static void arrive(Barrier& barrier, int count) {
  int generation = barrier.generation;
  if (++barrier.arrived == count) { barrier.arrived = 0; ++barrier.generation; }
  while (barrier.generation == generation) yield();
}
static void start() { kernel(); threads[current].done = true; yield(); }

static void check(const void* at, int bytes) {
  for (auto& array : arrays)
    if ((const char*)at >= array.start && (const char*)at + bytes <= array.start + array.bytes) return;
  fail("a copy from outside of the arrays");
}

static void launch(int gx, int gy, int gz, int count) {
  for (int z = 0; z < gz; ++z)
    for (int y = 0; y < gy; ++y)
      for (int x = 0; x < gx; ++x) {
        blockIdx = {x, y, z};
        std::memset(tiles_ptr, 0xff, sizeof tiles_ptr);  // NaN
        of_block = {};
        threads = std::vector<Thread>(count);
        warps = std::vector<Warp>((count + 31) / 32);
        for (auto& thread : threads) {
          getcontext(&thread.context);
          thread.context.uc_stack = {thread.stack.get(), 0, 1 << 16};
          makecontext(&thread.context, start, 0);
        }
        for (int left = count; left;) {
          left = 0;
          for (current = 0; current < count; ++current)
            if (!threads[current].done) { swapcontext(&scheduler, &threads[current].context); left += !threads[current].done; }
        }
      }
}

namespace tvmfast {
inline int thread() { return current; }
inline Warp& warp() { return warps[current / 32]; }
inline void barrier() { arrive(of_block, (int)threads.size()); }
inline void warp_barrier() { arrive(warp().barrier, 32); }

template <int BYTES> void copy(void* to, const void* from, bool inside) {
  if ((char*)to < (char*)tiles_ptr || (char*)to + BYTES > (char*)tiles_ptr + sizeof tiles_ptr) fail("a copy to outside of shared memory");
  if ((uintptr_t)to % BYTES || (inside && (uintptr_t)from % BYTES)) fail("a copy that is not aligned");
  if (inside) check(from, BYTES);
  threads[current].groups.back().push_back({(char*)to, (const char*)from, BYTES, inside});
}
template <class V> void read(V& to, const void* from) {
  if ((uintptr_t)from % sizeof(V)) fail("a load that is not aligned");
  check(from, sizeof(V));
  std::memcpy(&to, from, sizeof(V));
}
inline float shuffled(float value, int mask) {
  Warp& own = warp();
  own.values[current % 32] = value;
  warp_barrier();
  float other = own.values[(current % 32) ^ mask];
  warp_barrier();
  return other;
}
inline float wide(float x) { return x; }
inline float wide(half x) { return (float)x; }
inline void commit() { threads[current].groups.emplace_back(); }
template <int PENDING> void wait() {
  auto& groups = threads[current].groups;
  while ((int)groups.size() > PENDING + 1) {
    for (auto& each : groups.front()) {
      if (each.inside) std::memcpy(each.to, each.from, each.bytes);
      else std::memset(each.to, 0, each.bytes);
    }
    groups.erase(groups.begin());
  }
}
inline void exchange_rows(const void* row) {
  if ((uintptr_t)row % 16) fail("a row that is not aligned");
  warp().rows[current % 32] = (const char*)row;
  warp_barrier();
}
inline void load_matrices(unsigned (&to)[4], const void* row) {
  exchange_rows(row);
  int lane = current % 32;
  for (int i = 0; i < 4; ++i) std::memcpy(&to[i], warp().rows[i * 8 + lane / 4] + lane % 4 * 4, 4);
  warp_barrier();
}
inline void load_transposed(unsigned (&to)[4], const void* row) {
  exchange_rows(row);
  int lane = current % 32;
  for (int i = 0; i < 4; ++i)
    for (int h = 0; h < 2; ++h) std::memcpy((char*)&to[i] + 2 * h, warp().rows[i * 8 + lane % 4 * 2 + h] + lane / 4 * 2, 2);
  warp_barrier();
}
inline unsigned tf32(unsigned bits) { return (bits & 0x7f800000u) == 0x7f800000u ? bits & ~0x1fffu : (bits + 0x1000u) & ~0x1fffu; }
inline float element(float, unsigned* of_lanes, int stride, int row, int k) {  // of A or B transposed, [row][k]
  unsigned bits = of_lanes[(row % 8 * 4 + k % 4) * stride + row / 8 + k / 4 * (stride / 2)] & ~0x1fffu;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline float element(half, unsigned* of_lanes, int stride, int row, int k) {
  half value;
  std::memcpy(&value, (char*)&of_lanes[(row % 8 * 4 + k % 8 / 2) * stride + row / 8 + k / 8 * (stride / 2)] + k % 2 * 2, 2);
  return (float)value;
}
template <class T> void multiply(T kind, float* c, const unsigned (&a)[4], const unsigned* b) {
  Warp& own = warp();
  int lane = current % 32;
  std::memcpy(own.a[lane], a, 16);
  std::memcpy(own.b[lane], b, 8);
  warp_barrier();
  for (int i = 0; i < 4; ++i) {
    float total = 0;
    for (int k = 0; k < 32 / (int)sizeof(T); ++k)
      total += element(kind, own.a[0], 4, lane / 4 + i / 2 * 8, k) * element(kind, own.b[0], 2, lane % 4 * 2 + i % 2, k);
    c[i] += total;
  }
  warp_barrier();
}
}  // namespace tvmfast
