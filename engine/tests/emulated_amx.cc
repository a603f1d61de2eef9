/* The instructions of AMX as functions, for tests on a CPU without it: the tile registers of each thread, and what the
   hardware refuses. Intel, "Architecture Instruction Set Extensions Programming Reference", chapter 3. */

#include <stdint.h>
#include <string.h>

#include <atomic>
#include <mutex>
#include <string>

namespace {

constexpr int kTiles = 8, kRows = 16, kBytes = 64;

struct Tile {
  int rows, bytes; /* of a row */
  alignas(64) uint8_t data[kRows][kBytes];
};

struct Registers {
  bool configured = false;
  Tile tiles[kTiles];
};

thread_local Registers registers;
std::mutex mutex;
std::string error; /* the first */
std::atomic<int64_t> configurations{0}, products{0}, left{0};

Tile* Refuse(const std::string& text) {
  std::lock_guard<std::mutex> lock(mutex);
  if (error.empty()) error = text;
  return nullptr;
}

Tile* Get(int number, const char* name) {
  if (!registers.configured) return Refuse(std::string(name) + " without a configuration");
  if (number < 0 || number >= kTiles) return Refuse(std::string(name) + " of a tile that does not exist");
  Tile* tile = &registers.tiles[number];
  if (!tile->rows || !tile->bytes) return Refuse(std::string(name) + " of a tile that is not configured");
  return tile;
}

/* The three tiles of a product, if their shapes fit. */
bool Fit(int c, int a, int b, const char* name, Tile** tiles) {
  if (a == b || b == c || a == c) return Refuse(std::string(name) + " of the same tile twice"), false;
  int numbers[] = {c, a, b};
  for (int n = 0; n < 3; ++n)
    if (!(tiles[n] = Get(numbers[n], name))) return false;
  if (tiles[0]->rows != tiles[1]->rows || tiles[0]->bytes != tiles[2]->bytes || tiles[1]->bytes != 4 * tiles[2]->rows)
    return Refuse(std::string(name) + " of tiles whose shapes do not fit"), false;
  ++products;
  return true;
}

float Bfloat(const uint8_t* at) {
  uint16_t half;
  memcpy(&half, at, sizeof half);
  uint32_t bits = uint32_t{half} << 16;
  if (!(bits & 0x7f800000)) bits &= 0x80000000; /* denormals are zeros */
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

} /* namespace */

extern "C" {

int emulated_allowed() { return 1; }

int emulated_ldtilecfg(const uint8_t* given) {
  registers.configured = false;
  if (given[0] != 1) return Refuse("ldtilecfg of another palette than 1"), 0;
  if (given[1]) return Refuse("ldtilecfg with a start row"), 0;
  for (int n = 2; n < kBytes; ++n) {
    bool used = (n >= 16 && n < 16 + 2 * kTiles) || (n >= 48 && n < 48 + kTiles);
    if (!used && given[n]) return Refuse("ldtilecfg with reserved bytes"), 0;
  }
  for (int n = 0; n < kTiles; ++n) {
    uint16_t bytes;
    memcpy(&bytes, given + 16 + 2 * n, sizeof bytes);
    int rows = given[48 + n];
    if (rows > kRows || bytes > kBytes || !rows != !bytes) return Refuse("ldtilecfg of an impossible shape"), 0;
    registers.tiles[n].rows = rows;
    registers.tiles[n].bytes = bytes;
    memset(registers.tiles[n].data, 0, sizeof registers.tiles[n].data);
  }
  registers.configured = true;
  ++configurations;
  ++left;
  return 0;
}

int emulated_tilerelease() {
  if (registers.configured) --left;
  registers.configured = false;
  return 0;
}

int emulated_tilezero(int number) {
  if (Tile* tile = Get(number, "tilezero")) memset(tile->data, 0, sizeof tile->data);
  return 0;
}

int emulated_tileloadd64(int number, const uint8_t* from, int64_t stride) {
  Tile* tile = Get(number, "tileloadd64");
  if (!tile) return 0;
  memset(tile->data, 0, sizeof tile->data);
  for (int row = 0; row < tile->rows; ++row) memcpy(tile->data[row], from + row * stride, tile->bytes);
  return 0;
}

int emulated_tilestored64(int number, uint8_t* to, int64_t stride) {
  Tile* tile = Get(number, "tilestored64");
  for (int row = 0; tile && row < tile->rows; ++row) memcpy(to + row * stride, tile->data[row], tile->bytes);
  return 0;
}

int emulated_tdpbusd(int c, int a, int b) {
  Tile* tiles[3];
  if (!Fit(c, a, b, "tdpbusd", tiles)) return 0;
  for (int m = 0; m < tiles[0]->rows; ++m)
    for (int k = 0; k < tiles[2]->rows; ++k)
      for (int n = 0; n < tiles[0]->bytes / 4; ++n) {
        int32_t sum;
        memcpy(&sum, tiles[0]->data[m] + 4 * n, sizeof sum);
        for (int q = 0; q < 4; ++q) {
          int32_t weight = static_cast<int8_t>(tiles[2]->data[k][4 * n + q]);
          sum = static_cast<int32_t>(static_cast<uint32_t>(sum) + tiles[1]->data[m][4 * k + q] * weight);
        }
        memcpy(tiles[0]->data[m] + 4 * n, &sum, sizeof sum);
      }
  return 0;
}

/* The sums of the even elements and those of the odd ones, added at the end. */
int emulated_tdpbf16ps(int c, int a, int b) {
  Tile* tiles[3];
  if (!Fit(c, a, b, "tdpbf16ps", tiles)) return 0;
  for (int m = 0; m < tiles[0]->rows; ++m)
    for (int n = 0; n < tiles[0]->bytes / 4; ++n) {
      float both[2] = {0, 0}, sum;
      for (int k = 0; k < tiles[2]->rows; ++k)
        for (int q = 0; q < 2; ++q)
          both[q] += Bfloat(tiles[1]->data[m] + 4 * k + 2 * q) * Bfloat(tiles[2]->data[k] + 4 * n + 2 * q);
      memcpy(&sum, tiles[0]->data[m] + 4 * n, sizeof sum);
      sum += both[0] + both[1];
      memcpy(tiles[0]->data[m] + 4 * n, &sum, sizeof sum);
    }
  return 0;
}

/* The first error since the last call, configurations that were not released included; "" if there was none. */
const char* emulated_error() {
  static std::string told;
  std::lock_guard<std::mutex> lock(mutex);
  told.swap(error);
  error.clear();
  if (told.empty() && left) told = "a task that does not release its tiles";
  left = 0;
  return told.c_str();
}

int64_t emulated_products() { return products.exchange(0); }
int64_t emulated_configurations() { return configurations.exchange(0); }

} /* extern "C" */
