/* The threads that run the parallel loops of compiled kernels, and how a loop is shared among them.

   TVM's own pool gives each thread one part of a loop and waits for all of them by yielding the core: beside another
   program each kernel then takes a slice of the scheduler, 4 ms. Here a loop has several chunks for each thread. A
   thread claims those of its own part first, so that it finds its data in its caches, and then what is left of the
   others' parts: a thread that the system does not run holds up no more than the chunk that it has claimed. Who
   waits spins for some microseconds, and then sleeps.

   Each library of kernels contains this file. A process runs all libraries on the pool of the first that it opens;
   see runtime/fork.py. A program that opens a library by itself has TVM's pool. */

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <time.h>

#include <atomic>
#include <new>

namespace {

/* As in tvm/runtime/c_backend_api.h. */
struct TVMParallelGroupEnv {
  void* sync_handle;
  int32_t num_task;
};
using FTVMParallelLambda = int (*)(int task_id, TVMParallelGroupEnv* penv, void* cdata);

constexpr int kLoops = 8; /* that run at the same time, for several threads of the program; others run on one thread */
constexpr int64_t kMove = 10000000; /* nanoseconds */
constexpr int kLine = 64; /* bytes of a cache line: what different threads write lies on different ones */

/* The chunks at one thread's part of a loop that nobody has claimed, in the lower half. The upper half numbers the
   loops, so that a claim for one that has ended fails. */
struct alignas(kLine) Part {
  std::atomic<uint64_t> ticket{0};
};

struct alignas(kLine) Loop {
  std::atomic<bool> taken{false};
  std::atomic<FTVMParallelLambda> run{nullptr};
  std::atomic<void*> data{nullptr};
  std::atomic<int> tasks{0};
  TVMParallelGroupEnv env;
  uint64_t number = 0;
  Part* parts = nullptr;
  std::atomic<int> cpu{-1}; /* on which the thread that began the loop was then; -1: not known */
  alignas(kLine) std::atomic<int> unfinished{0}; /* chunks */
  std::atomic<bool> failed{false}, awaited{false};
};

Loop loops[kLoops];
int threads = 1, chunks = 1;
int64_t spin = 0;
bool bind = false;
bool started = false; /* guarded by `mutex`, as are the sleepers */
std::atomic<bool> ready{false};

alignas(kLine) std::atomic<uint32_t> posted{0}; /* counts loops */
alignas(kLine) std::atomic<int> sleeping{0};
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t more = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;

int64_t Nanoseconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

/* Wait until `condition` holds, but not long; return whether it does. */
template <typename Condition>
bool Spin(Condition condition) {
  for (int64_t end = Nanoseconds() + spin; !condition(); Pause())
    if (Nanoseconds() > end) return false;
  return true;
}

int First(int part, int tasks) { return static_cast<int>(int64_t{part} * tasks / threads); }

/* Run chunks of a loop until none is left to claim; begin with those of the part `own`. */
void Help(Loop* loop, int own) {
  int done = 0;
  for (int n = 0; n < threads; ++n) {
    int part = (own + n) % threads;
    std::atomic<uint64_t>& ticket = loop->parts[part].ticket;
    uint64_t seen = ticket.load(std::memory_order_acquire);
    while (uint32_t left = static_cast<uint32_t>(seen)) {
      /* Those of the loop that the ticket is for, if the claim succeeds: it cannot end before. */
      FTVMParallelLambda run = loop->run.load(std::memory_order_relaxed);
      void* data = loop->data.load(std::memory_order_relaxed);
      int tasks = loop->tasks.load(std::memory_order_relaxed);
      if (!ticket.compare_exchange_strong(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      if (run(First(part + 1, tasks) - static_cast<int>(left), &loop->env, data)) loop->failed = true;
      ++done;
      seen = ticket.load(std::memory_order_acquire);
    }
  }
  if (done && loop->unfinished.fetch_sub(done) == done && loop->awaited) {
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&finished);
    pthread_mutex_unlock(&mutex);
  }
}

#ifdef __linux__
int Cpu() { return bind ? -1 : sched_getcpu(); }

/* Keep this thread off a CPU, if it may run on others. */
void Avoid(int cpu) {
  static thread_local cpu_set_t allowed, chosen; /* by the program, and here */
  cpu_set_t now;
  if (sched_getaffinity(0, sizeof now, &now)) return;
  if (!CPU_EQUAL(&now, &chosen)) allowed = now;
  chosen = allowed;
  CPU_CLR(cpu, &chosen);
  if (CPU_COUNT(&chosen)) sched_setaffinity(0, sizeof chosen, &chosen);
}

void BindTo(pthread_t thread, int number) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && number-- == 0) CPU_SET(cpu, &one);
  if (CPU_COUNT(&one)) pthread_setaffinity_np(thread, sizeof one, &one);
}
#else
int Cpu() { return -1; }
void Avoid(int) {}
void BindTo(pthread_t, int) {}
#endif

/* Linux may wake a thread on the CPU of the one that wakes it, and leave both there for seconds beside an idle one: a
   network then takes twice its time. A thread that finds itself there moves, at most once in kMove. */
void* Work(void* number) {
  int own = static_cast<int>(reinterpret_cast<intptr_t>(number));
  int64_t moved = 0;
  for (;;) {
    uint32_t seen = posted;
    for (Loop& loop : loops) {
      if (loop.unfinished <= 0) continue;
      int cpu = Cpu();
      if (cpu >= 0 && cpu == loop.cpu && Nanoseconds() - moved > kMove) {
        Avoid(cpu);
        moved = Nanoseconds();
      }
      Help(&loop, own);
    }
    if (Spin([seen] { return posted != seen; })) continue;
    pthread_mutex_lock(&mutex);
    ++sleeping;
    while (posted == seen) pthread_cond_wait(&more, &mutex);
    --sleeping;
    pthread_mutex_unlock(&mutex);
  }
}

/* Start the threads, once. They get no signals: those are for the program's own. */
void Start() {
  pthread_mutex_lock(&mutex);
  if (!started) {
    for (Loop& loop : loops) loop.parts = new Part[threads];
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (intptr_t number = 1; number < threads; ++number) {
      pthread_t thread;
      if (pthread_create(&thread, nullptr, Work, reinterpret_cast<void*>(number))) break; /* fewer do as well */
      if (bind) BindTo(thread, static_cast<int>(number));
      pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    started = true;
  }
  pthread_mutex_unlock(&mutex);
  ready = true;
}

Loop* Take() {
  for (Loop& loop : loops)
    if (!loop.taken && !loop.taken.exchange(true)) return &loop;
  return nullptr;
}

} /* namespace */

extern "C" {

/* Set the number of threads, the chunks for each, for how many nanoseconds who waits spins, and whether each thread
   stays on one CPU; before the first loop. */
void tvmfast_pool_configure(int count, int chunks_each, int64_t nanoseconds, int bound) {
  threads = count;
  chunks = chunks_each;
  spin = nanoseconds;
  bind = bound;
}

/* Begin anew in the child of a fork, where no thread of the pool is left and no loop runs. */
void tvmfast_pool_forked() {
  mutex = PTHREAD_MUTEX_INITIALIZER;
  more = finished = PTHREAD_COND_INITIALIZER;
  for (Loop& loop : loops) new (&loop) Loop;
  sleeping = 0;
  ready = started = false;
}

/* Run a parallel loop, as TVMBackendParallelLaunch does. Kernels may not meet at barriers. */
int tvmfast_pool_launch(FTVMParallelLambda run, void* data, int tasks) {
  Loop* loop = threads > 1 ? Take() : nullptr;
  if (!loop) {
    TVMParallelGroupEnv alone = {nullptr, 1};
    return run(0, &alone, data);
  }
  if (!ready) Start();
  if (!tasks) tasks = threads * chunks;
  loop->run = run;
  loop->data = data;
  loop->tasks = tasks;
  loop->cpu = Cpu();
  loop->env = {nullptr, tasks};
  loop->failed = loop->awaited = false;
  loop->unfinished = tasks;
  ++loop->number;
  for (int part = 0; part < threads; ++part) {
    uint64_t count = static_cast<uint64_t>(First(part + 1, tasks) - First(part, tasks));
    loop->parts[part].ticket.store(loop->number << 32 | count, std::memory_order_release);
  }
  ++posted;
  if (sleeping) {
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&mutex);
  }
  Help(loop, 0);
  if (!Spin([loop] { return loop->unfinished == 0; })) {
    pthread_mutex_lock(&mutex);
    loop->awaited = true;
    while (loop->unfinished) pthread_cond_wait(&finished, &mutex);
    pthread_mutex_unlock(&mutex);
  }
  bool failed = loop->failed;
  loop->taken = false;
  return failed ? -1 : 0;
}

} /* extern "C" */
