/* What guarded.py's kernels call before each access to a buffer. */

#include <stdint.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>

namespace {

std::atomic<int64_t> checks{0};
std::mutex mutex;
std::map<std::string, std::string> faults; /* by access, the first */

} /* namespace */

extern "C" {

/* Whether elements `first` and `last` are among `extent`; notes it where they are not. */
int guarded_inside(const char* access, int64_t first, int64_t last, int64_t extent) {
  checks.fetch_add(1, std::memory_order_relaxed);
  if (first >= 0 && first < extent && last >= 0 && last < extent) return 1;
  std::string elements = std::to_string(first) + (last == first ? "" : " to " + std::to_string(last));
  std::lock_guard<std::mutex> lock(mutex);
  faults.emplace(access, elements + " of " + std::to_string(extent));
  return 0;
}

/* How many accesses were looked at since the last call. */
int64_t guarded_checks() { return checks.exchange(0); }

/* A line for each access that was out of bounds since the last call. */
const char* guarded_faults() {
  static std::string text;
  std::lock_guard<std::mutex> lock(mutex);
  text.clear();
  for (const auto& fault : faults) text += fault.first + " " + fault.second + "\n";
  faults.clear();
  return text.c_str();
}

} /* extern "C" */
