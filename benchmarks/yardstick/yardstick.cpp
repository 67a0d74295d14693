// The yardstick of benchmarks/core.py: threads that each read, decode and transform a sample into
// memory that is used again, and nothing else. No batches are handed over, nothing is shuffled but
// the order, and any error ends the process.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "kernels.h"

namespace {

enum Workload { kAffine, kTrain, kEvaluate };

constexpr int kBatches = 3;  // of memory
constexpr int kCrop = 224, kResized = 256;
const Floats kUnit = {{1 / 255.0f, 1 / 255.0f, 1 / 255.0f}, {0, 0, 0}};

Floats imagenet() {
  const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
  Floats floats;
  for (int c = 0; c < 3; ++c)
    floats.scale[c] = 1 / (255 * std[c]), floats.offset[c] = -mean[c] / std[c];
  return floats;
}

void read_file(const char* path, std::vector<uint8_t>* bytes) {
  const int file = open(path, O_RDONLY);
  const off_t size = file < 0 ? -1 : lseek(file, 0, SEEK_END);
  if (size < 0) std::exit(1);
  bytes->resize(size_t(size));
  if (pread(file, bytes->data(), size_t(size), 0) != size) std::exit(1);
  close(file);
}

class Worker {
 public:
  explicit Worker(Workload workload) : workload_(workload), normalized_(imagenet()) {}

  void run(const char* path, uint64_t seed, float* planes) {
    random_.seed(uint32_t(seed));
    read_file(path, &file_);
    const Size size = decoder_.read_size(file_);
    if (workload_ == kAffine) run_affine(size, planes);
    else if (workload_ == kTrain) run_train(size, planes);
    else run_evaluate(size, planes);
  }

 private:
  float draw(float low, float high) {
    return low + (high - low) * float(random_()) / float(std::minstd_rand::max());
  }

  void run_affine(Size size, float* planes) {
    decoder_.decode({0, 0, size.height, size.width}, &pixels_);
    const float angle = draw(-5, 5) * 3.14159265f / 180, scale = 1 / draw(0.5f, 2);
    const float x = float(size.width - 1) / 2, y = float(size.height - 1) / 2;
    const float dx = draw(-0.1f, 0.1f) * float(size.width) + x;
    const float dy = draw(-0.1f, 0.1f) * float(size.height) + y;
    const float c = std::cos(angle) * scale, s = std::sin(angle) * scale;
    const float matrix[6] = {c, s, x - c * dx - s * dy, -s, c, y + s * dx - c * dy};
    warp(pixels_, matrix, size.height, size.width, kUnit, planes);
  }

  void run_train(Size size, float* planes) {
    const Window window = draw_window(size);
    decoder_.decode(window, &pixels_);
    resize(pixels_, {kCrop, kCrop}, {0, 0, kCrop, kCrop}, draw(0, 1) < 0.5f, normalized_, planes);
  }

  Window draw_window(Size size) {
    for (int n = 0; n < 10; ++n) {
      const float area = draw(0.08f, 1) * float(size.height) * float(size.width);
      const float ratio = std::exp(draw(std::log(3 / 4.0f), std::log(4 / 3.0f)));
      const int width = int(std::lround(std::sqrt(area * ratio)));
      const int height = int(std::lround(std::sqrt(area / ratio)));
      if (width < 1 || height < 1 || width > size.width || height > size.height) continue;
      return {int(draw(0, float(size.height - height))), int(draw(0, float(size.width - width))),
              height, width};
    }
    return {0, 0, size.height, size.width};
  }

  // Decodes the part that the centre of the resized image shows, and a margin.
  void run_evaluate(Size size, float* planes) {
    const float scale = float(std::min(size.height, size.width)) / kResized;
    const int side = std::min(int(std::ceil(kCrop * scale)) + 4,
                              std::min(size.height, size.width));
    const Window window = {(size.height - side) / 2, (size.width - side) / 2, side, side};
    decoder_.decode(window, &pixels_);
    const int resized = int(std::lround(float(side) / scale)), begin = (resized - kCrop) / 2;
    resize(pixels_, {resized, resized}, {begin, begin, kCrop, kCrop}, false, normalized_, planes);
  }

  Workload workload_;
  Floats normalized_;
  Decoder decoder_;
  std::minstd_rand random_;
  std::vector<uint8_t> file_;
  Pixels pixels_;
};

}  // namespace

// Makes one pass over the samples `order` of `paths`. `memory` has room for kBatches * batch_size
// samples of `values` floats.
extern "C" void run_pass(int workload, int threads, const char* const* paths, const int* order,
                         int count, int batch_size, int64_t values, float* memory,
                         uint64_t seed) {
  std::atomic<int> next{0};
  auto work = [&] {
    Worker worker{Workload(workload)};
    for (int n = next++; n < count; n = next++) {
      float* const planes = memory + (n % (kBatches * batch_size)) * values;
      worker.run(paths[order[n]], seed * 1000003 + uint64_t(order[n]) + 1, planes);
    }
  };
  std::vector<std::thread> workers;
  for (int n = 0; n < threads; ++n) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
}
